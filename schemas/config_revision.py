"""ConfigRevision: a planner configuration that an operator publishes while the planner runs."""

from typing import Any

from headrace.schemas.base import Record, Seconds, Serial


class ConfigRevision(Record, frozen=True, kw_only=True, tag="headrace.config.v1"):
    revision: Serial  # rises by one; the planner ignores what is not above the one it has
    at: Seconds  # seconds since 1970, UTC
    author: str = ""  # who published it
    config: dict[str, Any]  # the names of `PlannerConfig`; validated before it is used
