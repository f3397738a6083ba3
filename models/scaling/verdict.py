"""A verdict: what one rule wants for one role, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """`replicas` None = hold. `evidence` holds the numbers the rule looked at, for the tick report."""

    replicas: int | None
    reason: Reason
    evidence: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def hold(cls, reason: Reason, **evidence: float) -> "Verdict":
        return cls(None, reason, evidence)
