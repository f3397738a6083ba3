"""DecisionAck: what became of a decision, said by the executor that carried it out."""

from enum import StrEnum

import msgspec

from headrace.schemas.base import Count, Name, Record, Role, Seconds, Serial


class AckStatus(StrEnum):
    ACCEPTED = "accepted"  # being carried out; settles nothing
    APPLIED = "applied"  # the orchestrator shows the counts
    REJECTED = "rejected"  # refused on purpose: a normal outcome
    FAILED = "failed"  # tried, did not work
    EXPIRED = "expired"  # came too late to act on

    @property
    def settles(self) -> bool:
        return self is not AckStatus.ACCEPTED


class DecisionAck(Record, frozen=True, kw_only=True, tag="headrace.ack.v1"):
    """Acks of the same decision may come several times and from several executors; the first that settles it counts."""

    epoch: Serial  # of the decision
    decision_id: Serial  # a settling ack settles every decision of its epoch up to this id
    status: AckStatus  # all but `accepted` settle the decision
    executor: Name  # who speaks; stable over restarts
    at: Seconds  # seconds since 1970, UTC
    counts: dict[Role, Count] = msgspec.field(default_factory=dict)  # replicas that the executor sees
    message: str = ""  # for people
