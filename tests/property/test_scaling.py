"""What no scaling rule may ever do."""

from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st
from world import DGD, taught

from headrace.models.perf.latency import EngineLimits, EngineLoad
from headrace.models.scaling.budget import Budget, Fleet, fit_budget, gpus_of
from headrace.models.scaling.load import LoadInputs, load_verdict
from headrace.models.scaling.merge import merge, rejection
from headrace.models.scaling.step import limit_step, survivors
from headrace.models.scaling.thresholds import DECODE_BANDS, PREFILL_BANDS, Pool, threshold_verdict
from headrace.schemas.proposal import Proposal, ProposalKind

ROLES = ("prefill", "decode", "encode")
counts = st.integers(0, 60)
MODELS = {role: taught(role) for role in ("prefill", "decode", "agg")}


# budget


@st.composite
def fleets(draw: st.DrawFn, known: bool = True) -> Fleet:
    roles = draw(st.sampled_from([ROLES[:1], ROLES[:2], ROLES]))
    shapes = st.integers(1, 9) if known else st.none() | st.integers(1, 9)

    def each(values: st.SearchStrategy[int | None]) -> dict[str, int]:
        return {role: draw(values) for role in roles}

    minimum = each(st.integers(0, 3))
    ask = {role: max(n, minimum[role]) for role, n in each(counts).items()}  # the least count is enforced before
    return Fleet(ask, each(counts), minimum, each(shapes))


bounds = st.integers(-1, 120)


@given(fleets(), bounds)
def test_the_ceiling_is_kept_or_nothing_grows(fleet: Fleet, ceiling: int) -> None:
    fitted = fit_budget(fleet, Budget(ceiling_gpus=ceiling))
    total = gpus_of(fitted.targets, fleet.gpus)
    if ceiling >= 0 and total > ceiling:
        assert all(n <= min(fleet.minimum[role], fleet.current[role]) for role, n in fitted.targets.items())
        assert fitted.over_gpus == total - ceiling
    else:
        assert fitted.over_gpus == 0


@given(fleets(known=False), bounds)
def test_a_ceiling_only_ever_takes_away(fleet: Fleet, ceiling: int) -> None:
    fitted = fit_budget(fleet, Budget(ceiling_gpus=ceiling))
    assert all(n <= fleet.ask[role] for role, n in fitted.targets.items())


@given(fleets(), bounds, bounds)
def test_no_clamp_ever_exceeds_the_ceiling_or_turns_a_shrink_into_growth(fleet: Fleet, low: int, high: int) -> None:
    budget = Budget(min(low, high) if high >= 0 else low, high)
    fitted = fit_budget(fleet, budget)
    total, before = gpus_of(fitted.targets, fleet.gpus), gpus_of(fleet.current, fleet.gpus)
    if budget.ceiling_gpus >= 0:
        assert total <= max(budget.ceiling_gpus, before)
    shrunk = [role for role in fleet.ask if fleet.ask[role] < fleet.current[role]]
    if before >= budget.floor_gpus:  # else the floor itself asks for growth
        assert all(fitted.targets[role] <= fleet.current[role] for role in shrunk)


@given(fleets(), bounds, bounds)
def test_nothing_falls_below_its_least_count_unless_it_was_there(fleet: Fleet, low: int, high: int) -> None:
    fitted = fit_budget(fleet, Budget(min(low, high), high))
    for role, n in fitted.targets.items():
        assert n >= min(fleet.minimum[role], fleet.current[role])


@given(fleets(), bounds)
def test_a_floor_is_met_where_whole_replicas_fit_and_only_ever_adds(fleet: Fleet, floor: int) -> None:
    fitted = fit_budget(fleet, Budget(floor_gpus=floor))
    assert fitted.floor_unmet == 0
    assert all(n >= fleet.ask[role] for role, n in fitted.targets.items())
    if fitted.rules:  # and no more than needed
        assert gpus_of(fitted.targets, fleet.gpus) < floor + max(fleet.gpus.values())


@given(fleets(), bounds, bounds)
def test_what_is_fitted_fits(fleet: Fleet, low: int, high: int) -> None:
    budget = Budget(min(low, high), high)
    once = fit_budget(fleet, budget)
    assume(once.over_gpus == 0)
    assert fit_budget(replace(fleet, ask=once.targets), budget).targets == once.targets


@given(fleets(known=False), bounds, bounds)
def test_an_unknown_shape_never_grows_under_a_ceiling_nor_shrinks_above_a_floor(
    fleet: Fleet, low: int, high: int
) -> None:
    assume(None in fleet.gpus.values())
    fitted = fit_budget(fleet, Budget(low, high))
    for role, n in fitted.targets.items():
        if high >= 0:
            assert n <= max(fleet.current[role], 0)
        if low > 0:
            assert n >= min(fleet.ask[role], fleet.current[role])


@given(fleets(), bounds)
def test_scarce_gpus_leave_no_replica_out_that_would_fit(fleet: Fleet, ceiling: int) -> None:
    fitted = fit_budget(fleet, Budget(ceiling_gpus=ceiling))
    assume(fitted.rules and fitted.over_gpus == 0)
    room = ceiling - gpus_of(fitted.targets, fleet.gpus)
    assert any(fleet.gpus[role] > room or n == fleet.ask[role] for role, n in fitted.targets.items())
    assert room < max(fleet.gpus.values())


# merge


proposals = st.builds(
    Proposal,
    dgd=st.just(DGD),
    proposal_id=st.sampled_from("abc"),
    source=st.sampled_from("xyz"),
    kind=st.sampled_from(ProposalKind),
    issued_at=st.just(0.0),
    expires_at=st.just(1e9),
    targets=st.dictionaries(st.sampled_from(ROLES), counts, max_size=3),
    priority=st.integers(-3, 3),
)
distinct = st.lists(proposals, max_size=8, unique_by=lambda p: (p.source, p.proposal_id))


@given(distinct, st.randoms(use_true_random=False), counts)
def test_the_order_of_proposals_makes_no_difference(opinions: list[Proposal], random: Random, baseline: int) -> None:
    shuffled = list(opinions)
    random.shuffle(shuffled)
    assert rejection(opinions) is rejection(shuffled)
    for role in ROLES:
        one, other = merge(role, baseline, opinions), merge(role, baseline, shuffled)
        assert one == other
        assert all(a is b for a, b in zip(one.used, other.used, strict=True))


@given(distinct, counts)
def test_a_merge_obeys_the_highest_floor_and_under_it_the_lowest_ceiling(
    opinions: list[Proposal], baseline: int
) -> None:
    for role in ROLES:
        mine = [(p.kind, p.targets[role]) for p in opinions if role in p.targets]
        floor = max((n for kind, n in mine if kind is ProposalKind.AT_LEAST), default=0)
        ceiling = min((n for kind, n in mine if kind is ProposalKind.AT_MOST), default=10**9)
        merged = merge(role, baseline, opinions)
        assert floor <= merged.replicas <= max(ceiling, floor)
        moved = [(b.before, b.after) for b in merged.bounds]
        assert all(before == after for (_, after), (before, _) in pairwise(moved))
        if moved:
            assert moved[-1][1] == merged.replicas


@given(distinct, counts)
def test_without_those_that_were_used_the_baseline_would_stay(opinions: list[Proposal], baseline: int) -> None:
    merged = merge("decode", baseline, opinions)
    if not list(merged.used):
        assert merged.replicas == baseline


# steps


@given(counts, st.integers(0, 100_000), st.integers(1, 100))
def test_a_step_keeps_its_direction_and_its_length(current: int, wanted: int, most: int) -> None:
    to = limit_step(current, wanted, most)
    assert min(current, wanted) <= to <= max(current, wanted)
    assert abs(to - current) <= most
    assert to == wanted or abs(to - current) == most


@given(counts, counts, st.integers(0, 5))
def test_a_step_down_leaves_at_least_the_least_count(workers: int, starting: int, least: int) -> None:
    left = survivors(workers, starting, least)
    if left is not None:
        assert max(1, least) <= left <= workers
        assert left < workers or starting


# load loop


tokens = st.integers(0, 4000) | st.integers(0, 200_000)
loads = st.builds(
    EngineLoad,
    queued_prefill_requests=st.integers(0, 50),
    queued_prefill_tokens=tokens,
    scheduled_prefill_requests=st.integers(0, 8),
    scheduled_prefill_tokens=st.integers(0, 2048),
    scheduled_decode_requests=st.integers(0, 256),
    scheduled_decode_kv_tokens=tokens,
    queued_decode_requests=st.integers(0, 50),
    queued_decode_kv_tokens=tokens,
)


@st.composite
def inputs(draw: st.DrawFn) -> LoadInputs:
    role = draw(st.sampled_from(["prefill", "decode", "agg"]))
    engines = draw(st.lists(loads, min_size=1, max_size=5))
    return LoadInputs(
        role=role,
        workers=draw(st.integers(1, 5)),
        starting=draw(st.integers(0, 2)),
        engines=engines,
        model=MODELS[role],
        limits=EngineLimits(2048, 256, draw(st.sampled_from([100_000, 2_000_000]))),
        ttft_sla_s=draw(st.floats(0.005, 5.0)),
        itl_sla_s=draw(st.floats(0.001, 1.0)),
        sensitivity=draw(st.floats(0.0, 1.0)),
        min_endpoint=draw(st.integers(0, 3)),
        kv_hit_rate=draw(st.none() | st.floats(0.0, 1.0)),
        accept_length=draw(st.floats(1.0, 4.0)),
    )


@given(inputs())
def test_the_load_loop_moves_by_one_and_never_below_the_least_count(x: LoadInputs) -> None:
    verdict = load_verdict(x)
    if verdict.replicas is not None:
        assert verdict.replicas == x.workers + 1 or verdict.replicas in (x.workers - 1, x.workers)
        assert verdict.replicas >= max(1, x.min_endpoint) or verdict.replicas > x.workers
    assert all(0 <= value < float("inf") for value in verdict.evidence.values())


def direction(x: LoadInputs) -> int:
    """2 up, 1 hold, 0 down."""
    wanted = load_verdict(x).replicas
    return 1 if wanted is None else 2 if wanted > x.workers else 0


@given(inputs(), st.integers(1, 50_000))
def test_more_load_never_asks_for_fewer_workers(x: LoadInputs, more: int) -> None:
    heavier = [
        replace(
            e,
            queued_prefill_tokens=e.queued_prefill_tokens + more,
            scheduled_decode_requests=e.scheduled_decode_requests + 1 + more // 1000,
            scheduled_decode_kv_tokens=e.scheduled_decode_kv_tokens + more,
        )
        for e in x.engines
    ]
    assert direction(replace(x, engines=heavier)) >= direction(x)


@given(inputs(), loads)
def test_one_engine_more_that_cannot_spare_its_worker_stops_a_step_down(x: LoadInputs, extra: EngineLoad) -> None:
    alone = load_verdict(replace(x, engines=[extra]))
    together = load_verdict(replace(x, engines=[*x.engines, extra]))
    if together.replicas is not None and together.replicas < x.workers:
        assert alone.replicas is not None
        assert alone.replicas < x.workers


@given(inputs())
def test_a_step_down_is_never_followed_by_a_step_up_under_the_same_load(x: LoadInputs) -> None:
    left = load_verdict(x).replicas
    if x.role == "agg" or left is None or left >= x.workers:  # of agg, the mean prefill beside decode changes too
        return
    crowded = [e.scaled(queue=x.crowding, decode=x.crowding) for e in x.engines]
    assert direction(replace(x, engines=crowded, workers=left, starting=0)) <= 1


@given(
    st.sampled_from([*PREFILL_BANDS.values(), *DECODE_BANDS.values()]),
    st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6),
    st.integers(1, 8),
    st.floats(0.0, 0.99),
)
def test_static_thresholds_never_step_down_to_where_they_step_up(band, values, workers, sensitivity) -> None:
    verdict = threshold_verdict(band, values, Pool(workers, sensitivity=sensitivity))
    if verdict.replicas is not None and verdict.replicas < workers:
        crowded = [v * workers / verdict.replicas for v in values]
        assert threshold_verdict(band, crowded, Pool(verdict.replicas)).replicas != verdict.replicas + 1
