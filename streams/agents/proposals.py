"""Keep the proposals of others while they last."""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.schemas.base import Role
from headrace.schemas.proposal import Proposal
from headrace.streams.agents.forecast import OWN

MAX_PROPOSALS = 256
_SHOWN = 200  # characters of foreign text that are kept


class Kept(msgspec.Struct):
    """The last word of an author about one id. Withdrawn ones are kept too, so that a repeat of the first stays out."""

    proposal: Proposal
    until: float  # seconds; the latest end of any of its versions


class OutsideProposals:
    """By source and id. The newest version of an id (by `issued_at`) counts; one that has expired withdraws it."""

    def __init__(self, roles: Collection[Role]) -> None:
        self.roles = roles
        self.kept: dict[tuple[str, str], Kept] = {}

    def handle(self, p: Proposal, now: float) -> str | None:
        """Take a proposal in. Returns what an operator should know about it, or None."""
        if p.source.startswith(OWN):
            return None  # an echo from the bus
        key = (p.source, p.proposal_id)
        name = f"proposal {p.proposal_id} of {p.source}"
        before = self.kept.get(key)
        if before is None:
            if p.expires_at <= now:
                return f"{name} had expired when it came"
            if len(self.kept) >= MAX_PROPOSALS:
                return f"{name}: more than {MAX_PROPOSALS} are in force already"
        elif p.issued_at <= before.proposal.issued_at:
            return None
        until = p.expires_at if before is None else max(p.expires_at, before.until)
        planned = {role: n for role, n in p.targets.items() if role in self.roles}
        self.kept[key] = Kept(replace(p, targets=planned, reason=p.reason[:_SHOWN]), until)
        foreign = sorted(set(p.targets) - set(planned))
        return f"{name} names roles that are not planned: {', '.join(foreign)[:_SHOWN]}" if foreign else None

    def live(self, now: float) -> list[Proposal]:
        """Those in force at `now`, sorted; what has ended is forgotten."""
        self.kept = {key: kept for key, kept in self.kept.items() if kept.until > now}
        return [
            kept.proposal
            for _, kept in sorted(self.kept.items())
            if kept.proposal.issued_at <= now < kept.proposal.expires_at
        ]

    def to_state(self) -> list[Any]:
        kept: list[Any] = msgspec.to_builtins(list(self.kept.values()))
        return kept

    def load_state(self, state: list[Any]) -> None:
        kept = msgspec.convert(state, list[Kept])
        self.kept = {(k.proposal.source, k.proposal.proposal_id): k for k in kept}
