"""The reference's two loops. Golden numbers: reference-semantics 5.5 and 6.9."""

import pytest
from reference_stage import agg_seen, both_seen, decode_seen, make_state, prefill_seen

from headrace.models.reference import load, throughput
from headrace.models.reference.forecast import Prediction
from headrace.models.reference.settings import Pool, Seen
from headrace.schemas.base import AGG, DECODE, PREFILL

REFUSED = "scale_down_refused_consolidation"
CAPPED = "scale_down_capped_by_throughput"


def load_only(mode: str, **more):
    return make_state(mode, enable_load_scaling=True, enable_throughput_scaling=False, **more)


@pytest.mark.parametrize(
    ("ready", "queues", "target", "reason", "ttft_ms"),
    [
        (1, [0], None, "no_change", 30.4),
        (1, [4000], 2, "scale_up", 130.4),
        (2, [4000, 4000], 3, "scale_up", 130.4),
        (2, [4000, 0], None, REFUSED, 130.4),
        (2, [0, 0], 1, "scale_down", 30.4),
        (2, [1000, 1000], 1, "scale_down", 50.4),
        (2, [2000, 2000], None, REFUSED, 80.4),
        (3, [2000] * 3, None, REFUSED, 80.4),
        (2, [0], None, "worker_count_mismatch", None),
        (0, [], None, "no_fpm_data", None),
    ],
)
def test_prefill_follows_the_queue_of_every_engine(ready, queues, target, reason, ttft_ms) -> None:
    told = load.decide(load_only("prefill", ttft_ms=100), prefill_seen(ready, queues))
    assert (told.targets.get(PREFILL), told.reason) == (target, reason)
    assert told.ttft_ms == (None if ttft_ms is None else pytest.approx(ttft_ms, rel=1e-6))


def test_idle_engines_grow_where_a_lone_prompt_misses_the_sla() -> None:
    told = load.decide(load_only("prefill", ttft_ms=30), prefill_seen(2, [0, 0]))
    assert told.targets == {PREFILL: 3}


def test_nothing_is_decided_before_speed_is_known() -> None:
    told = load.decide(load_only("prefill", taught=False), prefill_seen(1, [4000]))
    assert (told.targets, told.reason) == ({}, "insufficient_data")


@pytest.mark.parametrize(
    ("itl_ms", "ready", "kv", "target", "reason"),
    [
        (10, 1, [10000], None, "no_change"),
        (10, 1, [40000], 2, "scale_up"),
        (10, 2, [40000, 40000], 3, "scale_up"),
        (10, 2, [40000, 10000], None, REFUSED),
        (10, 2, [5000, 5000], 1, "scale_down"),
        (10, 2, [9000, 9000], 1, "scale_down"),
        (10, 2, [10000, 10000], None, REFUSED),
        (10, 3, [5000] * 3, 2, "scale_down"),
        (1000, 2, [60000, 60000], None, REFUSED),
        (1000, 2, [49000, 49000], 1, "scale_down"),
    ],
)
def test_decode_follows_the_batch_of_every_engine(itl_ms, ready, kv, target, reason) -> None:
    told = load.decide(load_only("decode", itl_ms=itl_ms), decode_seen(ready, kv))
    assert (told.targets.get(DECODE), told.reason) == (target, reason)


@pytest.mark.parametrize(
    ("goal", "kv", "target"),
    [
        ("throughput", [100_000, 1], None),
        ("throughput", [100_001, 1], 3),
        ("throughput", [60_000, 59_999], None),
        ("throughput", [59_999, 59_999], 1),
        ("throughput", [40_001, 1], 1),
        ("latency", [40_000, 1], None),
        ("latency", [40_001, 1], 3),
        ("latency", [9999, 9999], 1),
        ("latency", [10_000, 9999], None),
        ("load", [90_000, 0], 3),
        ("load", [60_000, 59_999], None),
        ("load", [20_000, 20_000], 1),
        ("load", [40_000, 1], None),
    ],
)
def test_thresholds_are_open_or_closed_as_recorded(goal, kv, target) -> None:
    state = load_only("decode", optimization_target=goal, decode_scale_up_kv_rate=90.0, decode_scale_down_kv_rate=20.0)
    told = load.decide(state, decode_seen(2, kv))
    assert told.targets.get(DECODE) == target
    assert told.reason == {None: "no_change", 3: "scale_up", 1: "scale_down"}[target]


@pytest.mark.parametrize(
    ("queue", "target"), [(1000, 3), (999, None), (100, None), (99, 1)], ids=["full", "below", "tenth", "idle"]
)
def test_a_queue_is_measured_in_contexts(queue, target) -> None:
    told = load.decide(load_only("prefill", optimization_target="throughput"), prefill_seen(2, [queue, queue]))
    assert told.targets.get(PREFILL) == target


def said(told) -> tuple:
    """Targets, and the reasons: overall, of prefill, of decode."""
    targets = (told.targets[PREFILL], told.targets[DECODE]) if told.targets else None
    return targets, (told.reason, told.reasons.get(PREFILL), told.reasons.get(DECODE))


@pytest.mark.parametrize(
    ("queue", "kv", "more", "floors", "targets", "reasons"),
    [
        (0, 5000, {}, None, (1, 1), ("scale_down",) * 3),
        (4000, 5000, {}, None, (3, 1), ("scale_up", "scale_up", "scale_down")),
        (4000, 10000, {}, None, (3, 2), ("scale_up", "scale_up", "no_change")),
        (2000, 10000, {}, None, None, (REFUSED,) * 3),
        (2000, 10000, {}, (4, 4), (4, 4), ("scale_up",) * 3),
        (0, 5000, {}, (2, 2), None, (CAPPED,) * 3),
        (0, 5000, {}, (2, 1), (2, 1), (CAPPED, CAPPED, "scale_down")),
        (4000, 40000, {"max_gpu_budget": 4}, None, None, ("no_change",) * 3),
        (2000, 10000, {"max_gpu_budget": 3}, None, (1, 2), ("scale_down", "scale_down", "no_change")),
        (0, 5000, {"min_endpoint": 3}, None, (3, 3), ("scale_up",) * 3),
    ],
)
def test_two_roles_are_told_together(queue, kv, more, floors, targets, reasons) -> None:
    state = make_state(
        "disagg",
        enable_load_scaling=True,
        enable_throughput_scaling=floors is not None,
        ttft_ms=100,
        itl_ms=10,
        **more,
    )
    if floors is not None:
        state.floors.update(zip((PREFILL, DECODE), floors, strict=True))
    assert said(load.decide(state, both_seen([queue] * 2, [kv] * 2))) == (targets, reasons)


def test_a_role_without_fpms_keeps_its_count() -> None:
    state = load_only("disagg", ttft_ms=100, itl_ms=10)
    seen = Seen({PREFILL: Pool(2, 2), DECODE: Pool(2, 2)}, prefill_seen(2, [0, 0]).fpms)
    assert said(load.decide(state, seen)) == ((1, 2), ("scale_down", "scale_down", "no_change"))


def test_a_count_that_nobody_expects_is_stable() -> None:
    state = load_only("prefill", ttft_ms=100)
    seen = Seen({PREFILL: Pool(2, None)}, prefill_seen(2, [0, 0]).fpms)
    assert load.decide(state, seen).targets == {PREFILL: 1}


@pytest.mark.parametrize(
    ("itl_ms", "queue", "floor", "target", "reason"),
    [
        (30, 0, None, None, REFUSED),
        (35, 0, None, 1, "scale_down"),
        (35, 8000, None, 3, "scale_up"),
        (35, 1500, None, None, REFUSED),
        (20, 0, None, 3, "scale_up"),
        (35, 0, 3, 3, "scale_up"),
        (35, 0, 2, None, CAPPED),
    ],
)
def test_an_aggregated_pool_hears_both_halves(itl_ms, queue, floor, target, reason) -> None:
    state = make_state(
        "agg", enable_load_scaling=True, enable_throughput_scaling=floor is not None, ttft_ms=100, itl_ms=itl_ms
    )
    if floor is not None:
        state.floors[AGG] = floor
    told = load.decide(state, agg_seen([5000, 5000], queue))
    assert (told.targets.get(AGG), told.reason) == (target, reason)


def test_a_floor_is_not_applied_to_one_role_that_wants_no_change() -> None:
    """The reference's mistake, kept."""
    state = make_state("prefill", enable_load_scaling=True, ttft_ms=100)
    state.floors[PREFILL] = 4
    assert load.decide(state, prefill_seen(2, [2000, 2000])).targets == {}


@pytest.mark.parametrize(
    ("load_on", "mode", "args", "targets", "reason"),
    [
        (False, "disagg", (0, 0, 0), {}, "model_not_ready"),
        (False, "disagg", (0, 1000, 200), {PREFILL: 1, DECODE: 1}, "scale"),
        (False, "disagg", (18000, 1000, 200), {PREFILL: 3, DECODE: 5}, "scale"),
        (False, "disagg", (18000, 1000, 200, 0.5), {PREFILL: 2, DECODE: 5}, "scale"),
        (False, "agg", (18000, 1000, 200), {AGG: 6}, "scale"),
        (False, "agg", (18000, 1000, 200, 0.5), {AGG: 5}, "scale"),
        (False, "decode", (-500, 1000, 200), {DECODE: 1}, "scale"),
        (True, "disagg", (18000, 1000, 200), {}, "set_lower_bound"),
    ],
)
def test_a_forecast_load_is_divided_by_what_one_engine_serves(load_on, mode, args, targets, reason) -> None:
    state = make_state(mode, enable_load_scaling=load_on)
    num_req, isl, osl, *hit = args
    state.note_rates(hit[0] if hit else None, None)
    told = throughput.decide(state, Prediction(num_req, isl, osl), 180.0)
    assert (told.targets, told.reason) == (targets, reason)
    if load_on:
        assert state.floors == {PREFILL: 3, DECODE: 5}


@pytest.mark.parametrize(("nextn", "decode", "agg"), [(0, 5, 6), (3, 3, 4)])
def test_accepted_tokens_count_only_where_tokens_are_guessed(nextn, decode, agg) -> None:
    for mode, want in (("decode", {DECODE: decode}), ("agg", {AGG: agg})):
        state = make_state(mode, speculative_nextn=nextn)
        state.note_rates(None, 2.0)
        assert throughput.decide(state, Prediction(18000, 1000, 200), 180.0).targets == want


def test_one_role_that_is_not_ready_holds_the_other() -> None:
    state = make_state("disagg", taught=False)
    ready = make_state("prefill").models[PREFILL]
    state.models[PREFILL] = ready
    told = throughput.decide(state, Prediction(18000, 1000, 200), 180.0)
    assert told.targets == {}
    assert told.reasons == {PREFILL: "partner_not_ready", DECODE: "model_not_ready"}


def test_a_window_without_a_length_says_nothing() -> None:
    told = throughput.decide(make_state("decode"), Prediction(18000, 1000, 200), 0.0)
    assert (told.targets, told.reason) == ({}, "no_traffic_data")


def test_a_length_that_is_no_number_raises() -> None:
    with pytest.raises(ValueError, match="NaN"):
        throughput.decide(make_state("decode"), Prediction(18000, float("nan"), 200), 180.0)
