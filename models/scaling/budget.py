"""The GPU budget, for any number of roles. The ceiling always wins; a shrink never grows a role; a floor never shrinks one.

Derivation in docs/scaling.md; the reference breaks each of these rules somewhere (reference-semantics 12, items 14 and 15;
dynamo#13144, dynamo#13064).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.base import Role
from headrace.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds in GPUs; negative = none."""

    floor_gpus: int = -1
    ceiling_gpus: int = -1


@dataclass(frozen=True, slots=True)
class Fitted:
    """Targets within the budget. `floor_unmet` GPUs are missing when no whole replica fits between floor and ceiling;
    `over_gpus` remain above the ceiling when even the minimums do not fit (then nothing may grow)."""

    targets: Mapping[Role, int]
    rules: Mapping[Role, Reason]
    floor_unmet: int = 0
    over_gpus: int = 0


def gpus_of(targets: Mapping[Role, int], gpus: Mapping[Role, int]) -> int:
    return sum(n * gpus[role] for role, n in targets.items())


def fit_budget(
    ask: Mapping[Role, int],
    *,
    current: Mapping[Role, int],
    minimum: Mapping[Role, int],
    gpus: Mapping[Role, int | None],
    budget: Budget,
) -> Fitted:
    """The nearest counts to `ask` that the budget allows.

    Unknown GPU shapes (None) fail closed: what can grow cost may not grow, shrinking is allowed (dynamo#11220).
    """
    if budget.floor_gpus < 0 and budget.ceiling_gpus < 0:
        return Fitted(dict(ask), {})
    if any(gpus[role] is None for role in ask):
        held = {role: min(n, current[role]) for role, n in ask.items()}
        return Fitted(held, {r: Reason.GPU_SHAPE_UNKNOWN for r in ask if held[r] != ask[r]})
    shape = {role: g for role, g in gpus.items() if g is not None}
    targets, rules = dict(ask), {}
    if 0 <= budget.ceiling_gpus < gpus_of(targets, shape):
        targets = _shrink(targets, current, minimum, shape, budget.ceiling_gpus)
        rules = {role: Reason.GPU_BUDGET_CEILING for role in ask if targets[role] != ask[role]}
    if gpus_of(targets, shape) < budget.floor_gpus and not rules:
        targets = _grow(targets, shape, budget)
        rules = {role: Reason.GPU_BUDGET_FLOOR for role in ask if targets[role] != ask[role]}
    total = gpus_of(targets, shape)
    return Fitted(
        targets,
        rules,
        floor_unmet=max(0, budget.floor_gpus - total),
        over_gpus=max(0, total - budget.ceiling_gpus) if budget.ceiling_gpus >= 0 else 0,
    )


def _shrink(
    ask: Mapping[Role, int],
    current: Mapping[Role, int],
    minimum: Mapping[Role, int],
    gpus: Mapping[Role, int],
    ceiling: int,
) -> dict[Role, int]:
    """Take replicas away, one at a time, until the ceiling holds.

    Growth is given back first, from the role that got the largest share of what it asked for, so that scarce GPUs are
    shared in proportion; then shrinking goes on below `current`, down to the minimums, in the same way.
    """
    targets = {role: min(n, max(minimum[role], ceiling // gpus[role])) for role, n in ask.items()}  # alone it could have that
    for bound in (current, minimum):
        while gpus_of(targets, gpus) > ceiling:
            lowest = {role: min(ask[role], max(bound[role], minimum[role])) for role in targets}
            spare = [role for role in targets if targets[role] > lowest[role]]
            if not spare:
                break
            share = {role: (targets[role] - lowest[role]) / (ask[role] - lowest[role]) for role in spare}
            targets[max(spare, key=lambda r: (share[r], gpus[r], r))] -= 1
    if gpus_of(targets, gpus) > ceiling:  # not even the minimums fit: nothing may grow
        return {role: min(n, current[role]) for role, n in targets.items()}
    return targets


def _grow(ask: Mapping[Role, int], gpus: Mapping[Role, int], budget: Budget) -> dict[Role, int]:
    """Add replicas to the role with the fewest GPUs for its share, never past the ceiling, until the floor holds."""
    targets = dict(ask)
    while gpus_of(targets, gpus) < budget.floor_gpus:
        room = budget.ceiling_gpus - gpus_of(targets, gpus) if budget.ceiling_gpus >= 0 else None
        able = [role for role in targets if room is None or gpus[role] <= room]
        if not able:
            break
        targets[min(able, key=lambda r: ((targets[r] + 1) / max(1, ask[r]), r))] += 1
    return targets
