"""Headrace: a streaming SLA planner for LLM inference."""

__version__ = "0.1.0"
