"""Proposal: what somebody wants, as SET, AT_LEAST, AT_MOST or REJECT. Built-in loops and outsiders use the same record."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.schemas.base import Name, Record, Role, Seconds


class ProposalKind(StrEnum):
    SET = "SET"
    AT_LEAST = "AT_LEAST"
    AT_MOST = "AT_MOST"
    REJECT = "REJECT"  # no scaling while it lasts


class Proposal(Record, frozen=True, kw_only=True, tag="headrace.proposal.v1"):
    proposal_id: Name
    source: Name  # names that begin with "headrace." are the planner's own
    kind: ProposalKind
    issued_at: Seconds
    expires_at: Seconds
    targets: dict[Role, Annotated[int, Meta(ge=0, le=100_000)]] = msgspec.field(default_factory=dict)
    priority: int = 100  # smaller wins among SETs; load loop 10, throughput loop 20
    reason: str = ""
