"""Forecasters: one series in, one value a window; the load of a coming window out."""
