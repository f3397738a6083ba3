"""ConfigRevision: a planner configuration that an operator publishes while the planner runs."""

from typing import Any

from headrace.schemas.base import Record, Seconds, Serial


class ConfigRevision(Record, frozen=True, kw_only=True, tag="headrace.config.v1"):
    revision: Serial
    at: Seconds
    author: str = ""
    config: dict[str, Any]  # the names of `PlannerConfig`; validated before it is used
