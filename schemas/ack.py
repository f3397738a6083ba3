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
    epoch: Serial
    decision_id: Serial
    status: AckStatus
    executor: Name
    at: Seconds
    counts: dict[Role, Count] = msgspec.field(default_factory=dict)  # what the executor sees
    message: str = ""
