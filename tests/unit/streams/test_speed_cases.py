"""Cases of the performance model as a running planner meets them; ids and rows of the list of reported failures."""

import pytest
from world import LIMITS, Stage, batch, decode_lesson, fpm, inventory, prediction, prefill_lesson, prefill_s, window

from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.latency import EngineLimits
from headrace.streams.planner import Planner

LIMIT = EngineLimits(LIMITS.max_num_batched_tokens, LIMITS.max_num_seqs, LIMITS.max_kv_tokens)


@pytest.fixture
def planner() -> Planner:
    return Stage.load(mode="prefill").planner


def rate(planner: Planner, isl: float = 1000.0) -> float:
    """Requests per second that one engine serves, as the next tick would see it."""
    planner.fpm.learn()
    found = capacity(planner.models["prefill"], "prefill", LIMIT, RequestShape(isl, 200), LatencyTargets(0.5))
    assert found is not None
    return found.requests_per_s


def test_workers_that_join_do_not_lower_the_rate_of_an_engine(planner):  # case T12, row 24: dynamo#12430
    """Their first passes are fifty times slower than the engines are."""
    planner.handle(prefill_lesson(1.0), 1.0)
    before = rate(planner)
    for worker in range(100, 116):
        first = [fpm(str(worker), i, wall=50 * prefill_s(1000), prefill=(1, 1000)) for i in (1, 2, 3)]
        planner.handle(batch("prefill", 2.0, *first), 2.0)
    assert rate(planner) == before
    for worker in range(100, 116):
        planner.handle(batch("prefill", 3.0, fpm(str(worker), 4, wall=prefill_s(1000), prefill=(1, 1000))), 3.0)
    assert rate(planner) == pytest.approx(before, rel=1e-6)


def test_a_restarted_worker_warms_up_again(planner):  # case T12
    planner.handle(prefill_lesson(1.0), 1.0)
    before = rate(planner)
    slow = [fpm("1", i, wall=5.0, prefill=(1, 1000)) for i in (1, 2, 3)]
    planner.handle(batch("prefill", 2.0, *slow, publisher=90), 2.0)
    assert rate(planner) == before


def test_a_report_says_how_far_the_learning_has_come(planner):  # row 32: dynamo#10692
    planner.handle(inventory(5.0, prefill=1), 5.0)
    report = planner.tick(5.0)[-1].roles["prefill"]
    assert report.unknown["speed"].startswith("0 prefill iterations learned, 5 are needed")
    planner.handle(prefill_lesson(6.0), 6.0)
    report = planner.tick(10.0)[-1].roles["prefill"]
    assert "speed" not in report.unknown
    assert report.estimated["fit_samples"] == 5


@pytest.mark.parametrize("itl_ms", [1e-9, 0.001])
def test_an_sla_that_no_load_meets_still_sizes_by_demand(itl_ms):  # case T14, T15: rows 26 and 27
    """The point that misses it least is used, and said to miss it."""
    p = Stage.throughput(mode="decode", itl_ms=itl_ms, throughput_adjustment_interval_seconds=60).planner
    p.handle(decode_lesson(1.0), 1.0)
    p.handle(inventory(60.0, decode=1), 60.0)
    p.handle(window(0.0, 60.0, 60), 60.0)
    p.handle(prediction(1.0, 60.0), 60.0)
    report = p.tick(60.0)[-1]
    assert report.roles["decode"].estimated["capacity_meets_sla"] == 0.0
    assert any("no load of a decode engine meets the SLA" in note for note in report.notes)
