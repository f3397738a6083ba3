"""What an executor did with a decision, as a value."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.schemas.ack import AckStatus
from headrace.schemas.base import Role
from headrace.schemas.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Outcome:
    """`counts` are the replicas per role that the executor sees; empty where it sees none."""

    status: AckStatus
    message: str = ""
    counts: Mapping[Role, int] = field(default_factory=dict)


class Refused(HeadraceError):
    """An orchestrator refuses the targets on purpose: over quota, not ready. The decision is acked as rejected."""
