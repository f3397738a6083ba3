"""GPU budgets: one pool, two pools, and the band between floor and ceiling."""

from collections.abc import Mapping

from conformance import Case, checks

from headrace.models.scaling.budget import Budget, Fitted, Fleet, fit_budget
from headrace.schemas.base import DECODE, PREFILL, Role

NOT_ZERO = "A ceiling below the least fleet leaves the least fleet"
CEILING_WINS = "The ceiling wins over the floor"
FLOOR_KEPT = "A floor is kept where a whole replica fits"
NO_GROWTH = "A shrink never grows a role"
NO_CUT = "A floor never shrinks a role"
SHARED = "GPUs are shared out one replica at a time"

Counts = Mapping[Role, int]


@checks("07_budget_single")
def single(case: Case) -> str | None:
    i = case.input
    return _compare(case, {DECODE: i["desired"]}, {DECODE: i["engine_gpu"]}, {DECODE: case.expected["replicas"]})


@checks("07_budget_pair")
def pair(case: Case) -> str | None:
    i = case.input
    return _compare(
        case,
        {PREFILL: i["num_p"], DECODE: i["num_d"]},
        {PREFILL: i["p_gpu"], DECODE: i["d_gpu"]},
        {PREFILL: case.expected["num_p"], DECODE: case.expected["num_d"]},
    )


@checks("07_budget_bounds")
def bounds(case: Case) -> str | None:
    """A total is within bounds where we leave replicas of one GPU as they are. We have no tolerance."""
    i = case.input
    if "gpu_per_replicas" in i:
        return _tolerance(max(i["gpu_per_replicas"], default=0), case.expected["tolerance"])
    ask = {DECODE: i["total"]}
    fitted = fit_budget(Fleet(ask, ask, {DECODE: 0}, {DECODE: 1}), Budget(i["min_gpus"], i["max_gpus"]))
    assert (dict(fitted.targets) == ask) == case.expected["in_bounds"]
    assert case.expected["has_reason"] == bool(fitted.rules)
    return None


def _tolerance(gpus: int, want: int) -> str | None:
    """The reference lets a floor be missed by the GPUs of one replica; we add the replica."""
    assert gpus == want
    if not gpus:
        return None
    ask = {DECODE: 1}
    fleet = Fleet(ask, ask, {DECODE: 0}, {DECODE: gpus})
    assert fit_budget(fleet, Budget(gpus + 1, 4 * gpus)).targets == {DECODE: 2}
    return FLOOR_KEPT


def _compare(case: Case, ask: Counts, gpus: Counts, want: Counts) -> str | None:
    """The reference looks at what is asked alone; so what runs is what is asked for."""
    least = dict.fromkeys(ask, case.input["min_endpoint"])
    budget = Budget(case.input["min_gpus"], case.input["max_gpus"])
    shapes = {role: g if g > 0 else None for role, g in gpus.items()}
    fitted = fit_budget(Fleet(ask, ask, least, shapes), budget)
    if None in shapes.values():
        assert fitted.targets == ask == want
        return None
    _keeps_the_rules(fitted, ask, gpus, least, budget)
    if fitted.targets == want:
        # The same counts; the reference drops a floor above the ceiling without a word, and we say what is missing.
        assert not case.quirk or fitted.floor_unmet > 0
        return CEILING_WINS if case.quirk else None
    return _kind(fitted.targets, ask, gpus, want, least, budget)


def _keeps_the_rules(fitted: Fitted, ask: Counts, gpus: Counts, least: Counts, budget: Budget) -> None:
    """What holds for every answer of ours."""
    ours = fitted.targets
    total, floor, ceiling = _gpus(ours, gpus), budget.floor_gpus, budget.ceiling_gpus
    if ceiling >= 0:
        assert fitted.over_gpus == max(0, total - ceiling)
        assert total <= ceiling or all(n == min(ask[role], least[role]) for role, n in ours.items())
    assert fitted.floor_unmet == max(0, floor - total)
    if fitted.floor_unmet:
        assert all(ceiling >= 0 and total + g > ceiling for g in gpus.values()), "another replica would fit"
    asked = _gpus(ask, gpus)
    if 0 <= ceiling < asked and (floor < 0 or floor <= ceiling):
        assert all(n <= ask[role] for role, n in ours.items()) or total <= ceiling
    if floor > asked:
        assert all(n >= min(ask[role], ours[role]) for role, n in ours.items())


def _kind(ours: Counts, ask: Counts, gpus: Counts, want: Counts, least: Counts, budget: Budget) -> str:
    kinds = _kinds(ask, gpus, want, least, budget)
    if kinds:
        return kinds[0]
    # Both keep the bounds, and differ in how they share: then ours must make at least as much of the ceiling.
    assert len(ask) == 2, (ours, want)
    if 0 <= budget.ceiling_gpus < _gpus(ask, gpus):
        assert _gpus(ours, gpus) >= _gpus(want, gpus), (ours, want)
    return SHARED


def _kinds(ask: Counts, gpus: Counts, want: Counts, least: Counts, budget: Budget) -> list[str]:
    """The rules of ours that the reference's answer breaks."""
    total, asked, floor, ceiling = _gpus(want, gpus), _gpus(ask, gpus), budget.floor_gpus, budget.ceiling_gpus
    over = 0 <= ceiling < asked
    broken = {
        NOT_ZERO: over and not any(want.values()) and any(min(ask[r], least[r]) > 0 for r in ask),
        CEILING_WINS: 0 <= ceiling < total,
        FLOOR_KEPT: total < floor and any(ceiling < 0 or total + g <= ceiling for g in gpus.values()),
        NO_GROWTH: over and any(n > ask[role] for role, n in want.items()),
        NO_CUT: not over and asked < floor and any(n < ask[role] for role, n in want.items()),
    }
    return [kind for kind, is_broken in broken.items() if is_broken]


def _gpus(counts: Counts, gpus: Counts) -> int:
    return sum(n * gpus[role] for role, n in counts.items())
