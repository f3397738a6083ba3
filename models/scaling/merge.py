"""Merging opinions about one role: SET, AT_LEAST, AT_MOST, REJECT. Source: reference-semantics 8.2."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.schemas.base import Role
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Merged:
    """`replicas` after the merge; `winner` is the SET that was taken (None = the baseline); `clamped_by` moved it."""

    replicas: int
    winner: Proposal | None
    clamped_by: Proposal | None
    clamp: Reason | None  # clamped_to_floor | clamped_to_ceiling


def rejection(proposals: Sequence[Proposal]) -> Proposal | None:
    """The REJECT that stops everything, if there is one: the most important first, then by id."""
    rejects = [p for p in proposals if p.kind is ProposalKind.REJECT]
    return min(rejects, key=lambda p: (p.priority, p.proposal_id), default=None)


def merge(role: Role, baseline: int, proposals: Sequence[Proposal]) -> Merged:
    """The count that follows from all live proposals for a role.

    The SET with the smallest priority is taken (equal priorities: the first by id), else the baseline; then the lowest
    AT_MOST and the highest AT_LEAST bound it, and a floor beats a ceiling. The order of the proposals does not matter.
    """
    mine = sorted((p for p in proposals if role in p.targets), key=lambda p: (p.priority, p.proposal_id))
    winner = next((p for p in mine if p.kind is ProposalKind.SET), None)
    wanted = winner.targets[role] if winner else baseline
    ceiling = min((p for p in mine if p.kind is ProposalKind.AT_MOST), key=lambda p: p.targets[role], default=None)
    floor = max((p for p in mine if p.kind is ProposalKind.AT_LEAST), key=lambda p: p.targets[role], default=None)
    clamped_by, clamp = None, None
    if ceiling and wanted > ceiling.targets[role]:
        wanted, clamped_by, clamp = ceiling.targets[role], ceiling, Reason.CLAMPED_TO_CEILING
    if floor and wanted < floor.targets[role]:
        wanted, clamped_by, clamp = floor.targets[role], floor, Reason.CLAMPED_TO_FLOOR
    return Merged(wanted, winner, clamped_by, clamp)
