"""Targets without an SLA. Golden numbers: reference-semantics 6.7, 6.9 (decode, KV capacity 100,000, two workers)."""

import pytest

from headrace.models.perf.latency import EngineLoad
from headrace.models.scaling.thresholds import Pool, band_of, signals, threshold_verdict
from headrace.schemas.config import planner_config
from headrace.schemas.reasons import Reason

LOAD = {
    "prefill_scale_up_queue_tokens": 4000,
    "prefill_scale_down_queue_tokens": 500,
    "decode_scale_up_kv_rate": 90,
    "decode_scale_down_kv_rate": 20,
}


def verdict(target, role, engines, per, workers=2, **more):
    config = planner_config({"optimization_target": target, **(LOAD if target == "load" else {})})
    values = signals(role, engines, per=per, tokens=target == "load")
    return threshold_verdict(band_of(config, role), values, Pool(workers, **more))


def kvs(*tokens):
    return [EngineLoad(scheduled_decode_requests=1, scheduled_decode_kv_tokens=t) for t in tokens]


def queues(*tokens):
    return [EngineLoad(queued_prefill_requests=1, queued_prefill_tokens=t) for t in tokens]


@pytest.mark.parametrize(
    ("target", "tokens", "replicas"),
    [
        ("throughput", [100_000, 1], None),
        ("throughput", [100_001, 1], 3),
        ("throughput", [60_000, 59_999], None),
        ("throughput", [39_999, 1], 1),
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
def test_decode_follows_the_golden_table(target, tokens, replicas):
    assert verdict(target, "decode", kvs(*tokens), 100_000.0).replicas == replicas


def test_a_reduction_that_would_scale_up_again_is_refused():
    # The reference takes one of 2 x 59,999 away and finds 119,998 on the other (weak spot 11). It also takes one of
    # [40,001, 1] away; the other would be at 80.002 % of its limit, and 80 % is all that survivors may use.
    for tokens in ([59_999, 59_999], [40_001, 1]):
        found = verdict("throughput", "decode", kvs(*tokens), 100_000.0)
        assert (found.replicas, found.reason) == (None, Reason.SCALE_DOWN_REFUSED_CONSOLIDATION)


@pytest.mark.parametrize(
    ("target", "tokens", "replicas"),
    [
        ("throughput", [8192, 0], 3),
        ("throughput", [8191, 0], None),
        ("throughput", [819, 819], 1),
        ("throughput", [820, 0], None),
        ("latency", [820, 0], 3),
        ("latency", [819, 0], None),
        ("latency", [0, 0], 1),
        ("latency", [1, 0], None),
        ("load", [4000, 0], 3),
        ("load", [3999, 501], None),
        ("load", [500, 500], 1),
    ],
)
def test_prefill_follows_its_thresholds(target, tokens, replicas):
    assert verdict(target, "prefill", queues(*tokens), 8192.0).replicas == replicas


def test_on_aggregated_engines_queued_prompts_count_as_kv():
    engine = EngineLoad(queued_prefill_tokens=60_000, scheduled_decode_kv_tokens=40_001)
    assert verdict("throughput", "agg", [engine, EngineLoad()], 100_000.0).replicas == 3
    assert verdict("throughput", "decode", [engine, EngineLoad()], 100_000.0).replicas is None


def test_a_full_engine_with_a_queue_asks_for_another_at_a_threshold_of_all_its_kv():
    # case T28, ray#24793: a use that cannot pass 100 % never scales up; what waits counts too.
    config = planner_config(LOAD | {"optimization_target": "load", "decode_scale_up_kv_rate": 100})
    full = [EngineLoad(scheduled_decode_kv_tokens=99_000, queued_decode_requests=3, queued_decode_kv_tokens=3000)]
    values = signals("decode", full, per=100_000.0, tokens=True)
    assert threshold_verdict(band_of(config, "decode"), values, Pool(1)).replicas == 2


@pytest.mark.parametrize("noise", [-0.05, -0.01, 0.0, 0.01, 0.05])
def test_noise_around_a_constant_load_never_moves_the_count(noise):  # case T29, wva#1427
    for tokens in (10_000, 38_000, 40_000, 42_000, 50_000, 62_000, 80_000, 95_000, 100_000):
        load, workers, seen = 2.0 * tokens, 2, []
        for turn in range(8):
            each = load * (1 + noise * (-1) ** turn) / workers
            workers = verdict("throughput", "decode", kvs(*[each] * workers), 100_000.0, workers).replicas or workers
            seen.append(workers)
        assert seen == sorted(seen) or seen == sorted(seen, reverse=True)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_count_after_a_step_up_is_not_taken_back_by_the_same_load(workers):
    tokens = 100_001
    assert verdict("throughput", "decode", kvs(*[tokens] * workers), 100_000.0, workers).replicas == workers + 1
    spread = tokens * workers / (workers + 1)
    after = verdict("throughput", "decode", kvs(*[spread] * (workers + 1)), 100_000.0, workers + 1)
    assert after.replicas is None


def test_what_is_starting_can_be_given_up_at_the_least_count():  # case T22
    assert verdict("throughput", "decode", kvs(10), 100_000.0, 1).reason is Reason.NO_CHANGE
    found = verdict("throughput", "decode", kvs(10), 100_000.0, 1, starting=1)
    assert (found.replicas, found.reason) == (1, Reason.SCALE_DOWN)


@pytest.mark.parametrize("per", [None, 0.0])
@pytest.mark.parametrize("role", ["prefill", "decode", "agg"])
def test_an_unknown_capacity_is_insufficient_data(role, per):
    assert verdict("throughput", role, [EngineLoad()], per).reason is Reason.INSUFFICIENT_DATA


def test_no_engines_and_no_workers_are_insufficient_data():
    assert verdict("throughput", "decode", [], 100_000.0).reason is Reason.INSUFFICIENT_DATA
    assert verdict("throughput", "decode", kvs(1), 100_000.0, 0).reason is Reason.INSUFFICIENT_DATA
