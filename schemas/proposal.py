"""Proposal: what somebody wants, as SET, AT_LEAST, AT_MOST or REJECT. Built-in loops and outsiders write the same."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.schemas.base import Name, Priority, Record, Role, Seconds


class ProposalKind(StrEnum):
    SET = "SET"  # exactly this many; the smallest priority number wins
    AT_LEAST = "AT_LEAST"  # no fewer
    AT_MOST = "AT_MOST"  # no more
    REJECT = "REJECT"  # no scaling while it lasts


class Proposal(Record, frozen=True, kw_only=True, tag="headrace.proposal.v1"):
    proposal_id: Name  # unique per source
    source: Name  # names that begin with "headrace." are the planner's own
    kind: ProposalKind  # how the targets are meant
    issued_at: Seconds  # seconds since 1970, UTC
    expires_at: Seconds  # ticks after this do not use it
    targets: dict[Role, Annotated[int, Meta(ge=0, le=100_000)]] = msgspec.field(default_factory=dict)  # replicas
    priority: Priority = 100  # smaller wins among SETs; load loop 10, throughput loop 20
    reason: str = ""  # for people
