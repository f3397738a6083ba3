"""The GPU budget, for any number of roles.

The ceiling always wins; a shrink never grows a role; a floor never shrinks one. Derivation in docs/scaling.md; the
reference breaks each of these rules somewhere (reference-semantics 12, items 14 and 15; dynamo#13144, dynamo#13064).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from headrace.schemas.base import Role
from headrace.schemas.reasons import Reason

STRIDE = 16  # far from the bound, this part of what is missing is moved at once; near it, single replicas


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds in GPUs; negative = none."""

    floor_gpus: int = -1
    ceiling_gpus: int = -1


@dataclass(frozen=True, slots=True)
class Fitted:
    """Targets within the budget, and for each role that was moved the rule that moved it.

    `floor_unmet` GPUs are missing when no whole replica fits between floor and ceiling; `over_gpus` remain above the
    ceiling when even the minimums do not fit (then nothing may grow).
    """

    targets: Mapping[Role, int]
    rules: Mapping[Role, Reason] = field(default_factory=dict)
    floor_unmet: int = 0
    over_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is asked for, what runs, and the least of each role, in replicas; the GPUs of a replica (None = unknown)."""

    ask: Mapping[Role, int]
    current: Mapping[Role, int]
    minimum: Mapping[Role, int]
    gpus: Mapping[Role, int | None]


def gpus_of(targets: Mapping[Role, int], gpus: Mapping[Role, int]) -> int:
    return sum(n * gpus[role] for role, n in targets.items())


def fit_budget(fleet: Fleet, budget: Budget) -> Fitted:
    """The nearest counts to `fleet.ask` that the budget allows.

    Unknown GPU shapes fail closed: under a ceiling nothing may grow, above a floor nothing may shrink (dynamo#11220).
    """
    gpus = {role: g for role, g in fleet.gpus.items() if g is not None}
    if len(gpus) < len(fleet.ask):
        return _fail_closed(fleet, budget)
    targets = dict(fleet.ask)
    if 0 <= budget.ceiling_gpus < gpus_of(targets, gpus):
        targets = _shrink(fleet, gpus, budget.ceiling_gpus)
    if gpus_of(targets, gpus) < budget.floor_gpus:
        targets = _grow(targets, fleet.current, gpus, budget)
    total = gpus_of(targets, gpus)
    return Fitted(
        targets,
        {role: _rule(n, fleet.ask[role]) for role, n in targets.items() if n != fleet.ask[role]},
        floor_unmet=max(0, budget.floor_gpus - total),
        over_gpus=max(0, total - budget.ceiling_gpus) if budget.ceiling_gpus >= 0 else 0,
    )


def _rule(fitted: int, ask: int) -> Reason:
    return Reason.GPU_BUDGET_CEILING if fitted < ask else Reason.GPU_BUDGET_FLOOR


def _fail_closed(fleet: Fleet, budget: Budget) -> Fitted:
    targets = dict(fleet.ask)
    for role, now in fleet.current.items():
        if budget.ceiling_gpus >= 0:
            targets[role] = min(targets[role], now)
        if budget.floor_gpus > 0:
            targets[role] = max(targets[role], now)
    return Fitted(targets, {role: Reason.GPU_SHAPE_UNKNOWN for role, n in targets.items() if n != fleet.ask[role]})


def _shrink(fleet: Fleet, gpus: Mapping[Role, int], ceiling: int) -> dict[Role, int]:
    """Take replicas away until the ceiling holds.

    Growth is given back first, from the role that got the largest share of what it asked for, so that scarce GPUs are
    shared in proportion; then shrinking goes on below `current`, down to the minimums, in the same way. Where not even
    those fit, no role is lifted to its minimum; what runs of the minimums is left alone, for it is the service.
    """
    ask, current, least = fleet.ask, fleet.current, fleet.minimum
    alone = {role: max(least[role], ceiling // gpus[role]) for role in ask}
    targets = {role: min(n, alone[role]) for role, n in ask.items()}
    for lowest in (
        {role: min(n, max(current[role], least[role])) for role, n in ask.items()},
        {role: min(n, least[role]) for role, n in ask.items()},
        {role: min(n, least[role], current[role]) for role, n in ask.items()},
    ):
        while (over := gpus_of(targets, gpus) - ceiling) > 0:
            spare = [role for role in targets if targets[role] > lowest[role]]
            if not spare:
                break
            share = {role: (targets[role] - lowest[role]) / (ask[role] - lowest[role]) for role in spare}
            role = max(spare, key=lambda r: (share[r], gpus[r], targets[r] - lowest[r], r))
            targets[role] -= min(max(1, over // (STRIDE * gpus[role])), targets[role] - lowest[role])
    return _refill(targets, ask, gpus, ceiling)


def _refill(
    targets: dict[Role, int], ask: Mapping[Role, int], gpus: Mapping[Role, int], ceiling: int
) -> dict[Role, int]:
    """Give back what still fits: a role with large replicas, shrunk by one, may leave room for several small ones."""
    while able := [r for r in targets if targets[r] < ask[r] and gpus[r] <= ceiling - gpus_of(targets, gpus)]:
        targets[min(able, key=lambda r: (targets[r] / ask[r], r))] += 1
    return targets


def _grow(
    ask: Mapping[Role, int], current: Mapping[Role, int], gpus: Mapping[Role, int], budget: Budget
) -> dict[Role, int]:
    """Add replicas until the floor holds, never past the ceiling.

    A shrink is taken back before any role grows; then the role that has grown least in proportion comes first.
    """
    targets = dict(ask)
    for most in (current, None):
        base = {role: max(1, n) for role, n in (most or targets).items()}
        while (missing := budget.floor_gpus - gpus_of(targets, gpus)) > 0:
            room = _room(targets, gpus, budget)
            able = [r for r in targets if gpus[r] <= room and (most is None or targets[r] < most[r])]
            if not able:
                break
            role = min(able, key=lambda r: ((targets[r] + 1) / base[r], r))
            step = min(max(1, missing // (STRIDE * gpus[role])), int(min(room, missing + gpus[role]) // gpus[role]))
            targets[role] += step if most is None else min(step, most[role] - targets[role])
    return targets


def _room(targets: Mapping[Role, int], gpus: Mapping[Role, int], budget: Budget) -> float:
    """GPUs below the ceiling."""
    return inf if budget.ceiling_gpus < 0 else budget.ceiling_gpus - gpus_of(targets, gpus)
