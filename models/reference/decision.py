"""What a loop of the reference says: counts, and the reasons by which it explains them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.schemas.base import Role
from headrace.schemas.reasons import Reason

REFUSED = Reason.SCALE_DOWN_REFUSED_CONSOLIDATION
CAPPED = Reason.SCALE_DOWN_CAPPED_BY_THROUGHPUT


@dataclass(frozen=True, slots=True)
class Sub:
    """The load loop about one role: a count, or None for no opinion."""

    replicas: int | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """`targets` empty: nothing is proposed. Reasons by role are given where there are two roles."""

    targets: Mapping[Role, int] = field(default_factory=dict)
    reason: Reason | None = None
    reasons: Mapping[Role, Reason] = field(default_factory=dict)
    ttft_ms: float | None = None  # the largest estimate
    itl_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ThroughputDecision:
    targets: Mapping[Role, int] = field(default_factory=dict)
    reason: Reason | None = None
    reasons: Mapping[Role, Reason] = field(default_factory=dict)
    requests_per_s: Mapping[Role, float] = field(default_factory=dict)  # of one engine
