"""Ownership, recovery and the loop around a pure planner; `connectors/bus` is bytes in and out."""
