"""Merging opinions about one role: SET, AT_LEAST, AT_MOST, REJECT. Source: reference-semantics 8.2."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.schemas.base import Role
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Bound:
    """A proposal that moved the count, and how."""

    proposal: Proposal
    rule: Reason  # clamped_to_floor | clamped_to_ceiling
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Merged:
    """`replicas` after the merge; `winner` is the SET that was taken (None = the baseline); `bounds` then moved it."""

    replicas: int
    winner: Proposal | None
    bounds: tuple[Bound, ...] = ()

    @property
    def used(self) -> Iterator[Proposal]:
        """The proposals without which the count might be another."""
        if self.winner is not None:
            yield self.winner
        for bound in self.bounds:
            yield bound.proposal


def rejection(proposals: Sequence[Proposal]) -> Proposal | None:
    """The REJECT that stops everything, if there is one: the most important first, then by id and source."""
    return min((p for p in proposals if p.kind is ProposalKind.REJECT), key=_rank, default=None)


def merge(role: Role, baseline: int, proposals: Sequence[Proposal]) -> Merged:
    """The count that follows from all live proposals for a role.

    The SET with the smallest priority is taken (equal priorities: the first by id, then by source), else the baseline;
    then the lowest AT_MOST and the highest AT_LEAST bound it, and a floor beats a ceiling. The order of the proposals
    does not matter.
    """
    mine = sorted((p for p in proposals if role in p.targets), key=_rank)
    winner = next((p for p in mine if p.kind is ProposalKind.SET), None)
    wanted = winner.targets[role] if winner else baseline
    ceiling = min((p for p in mine if p.kind is ProposalKind.AT_MOST), key=lambda p: p.targets[role], default=None)
    floor = max((p for p in mine if p.kind is ProposalKind.AT_LEAST), key=lambda p: p.targets[role], default=None)
    bounds = []
    if ceiling is not None and wanted > (most := ceiling.targets[role]):
        bounds.append(Bound(ceiling, Reason.CLAMPED_TO_CEILING, wanted, most))
        wanted = most
    if floor is not None and wanted < (least := floor.targets[role]):
        bounds.append(Bound(floor, Reason.CLAMPED_TO_FLOOR, wanted, least))
        wanted = least
    return Merged(wanted, winner, tuple(bounds))


def _rank(p: Proposal) -> tuple[int, str, str]:
    return (p.priority, p.proposal_id, p.source)
