"""The queue-aware policy under each setting of the two loops' switches: when it looks, and what has a say."""

from typing import Any

import pytest
from world import Stage, held, prediction, queued

from headrace.schemas.config import planner_config
from headrace.schemas.reasons import Reason

SLA = {"optimization_target": "sla", "ttft_ms": 300, "itl_ms": 20, "max_gpu_budget": -1, "load_predictor": "constant"}


def stage(**config: Any) -> Stage:
    return Stage.of(**{**SLA, "capacity_policy": "queue_aware", **config}).teach()


def steady(s: Stage, at: float, fleet: int, rate: float | None, tokens: int = 0, kv: int = 1000) -> None:
    """What came in since the tick before, of a fleet of so many workers a role."""
    since = at - s.planner.config.planning_interval_seconds
    if rate is not None:
        s.traffic(since, at, round(rate * (at - since)))
    s.engines("prefill", at, *[queued(tokens)] * fleet)
    s.engines("decode", at, *[held(kv)] * fleet)
    s.fleet(at, prefill=fleet, decode=fleet)


def test_it_is_the_default_against_an_sla_and_nowhere_else():
    assert planner_config({"optimization_target": "sla"}).queue_aware
    assert not planner_config({}).queue_aware
    assert not planner_config({"optimization_target": "sla", "capacity_policy": "reference"}).queue_aware


def test_with_the_throughput_loop_alone_a_fleet_is_sized_once_per_interval_in_one_step():
    s = stage()
    assert s.planner.next_tick_at == 180.0
    steady(s, 180.0, 1, rate=100.0)
    said = s.tick()
    assert said.targets is not None
    assert said.targets["prefill"] >= 4  # 100 requests/s x 30 ms are 3 engines' worth
    assert said.role("prefill").throughput_reason == Reason.SCALE_UP
    assert said.role("prefill").load_reason == Reason.DISABLED
    assert said.role("prefill").estimated["capacity_rps"] > 0
    s.apply(said, 200.0)
    assert s.planner.next_tick_at == 360.0


def test_with_the_throughput_loop_alone_queues_have_no_say_and_silent_engines_forbid_nothing():
    s = stage()
    steady(s, 180.0, 4, rate=5.0, tokens=2_000_000)
    assert s.tick().role("prefill").reason == Reason.STABILISING
    s.traffic(180.0, 360.0, 900)
    s.fleet(360.0, prefill=4, decode=4)  # no FPM for three minutes
    assert s.tick().targets == {"prefill": 1, "decode": 1}


def test_with_the_throughput_loop_alone_unknown_traffic_holds():
    s = stage()
    steady(s, 180.0, 4, rate=None, tokens=2_000_000)
    said = s.tick()
    assert said.targets is None
    assert said.role("prefill").reason == Reason.NO_TRAFFIC_DATA


def test_a_prediction_from_outside_raises_the_plan_and_never_lowers_it():
    for said_rps, at_least, at_most in ((200.0, 6, 12), (1.0, 2, 4)):
        s = stage()
        s.give(prediction(said_rps, 170.0, priority=1), 170.0)
        steady(s, 180.0, 2, rate=50.0)  # needs 1.5 engines itself
        wanted = s.tick().role("prefill").known["wanted"]
        assert at_least <= wanted <= at_most


def test_a_prediction_sizes_a_fleet_where_nobody_measures_traffic():
    s = stage()
    s.give(prediction(200.0, 170.0, priority=1), 170.0)
    steady(s, 180.0, 2, rate=None)
    assert s.tick().role("prefill").known["wanted"] >= 6


def test_with_both_loops_it_looks_every_load_interval_and_plans_with_the_forecast():
    s = stage(enable_load_scaling=True, throughput_adjustment_interval_seconds=60)
    for i in range(1, 13):
        steady(s, 5.0 * i, 4, rate=100.0)
        said = s.tick()
    assert said.report.at == 60.0
    s.traffic(60.0, 65.0, 0)
    assert s.tick().role("prefill").estimated["planned_rps"] == pytest.approx(100.0)


def test_with_both_loops_unknown_traffic_takes_nothing_away_but_queues_may_ask_for_one_more():
    calm, piled = (stage(enable_load_scaling=True) for _ in range(2))
    for i in range(1, 60):
        at = 5.0 * i
        steady(calm, at, 4, rate=None, kv=0)
        assert calm.tick().targets is None
    steady(piled, 5.0, 2, rate=None, tokens=2_000_000)
    said = piled.tick()
    assert said.targets == {"prefill": 3, "decode": 2}
    assert said.role("prefill").reason == Reason.SCALE_UP


def test_with_the_load_loop_alone_and_no_traffic_ever_queues_move_one_replica_at_a_time():
    s = stage(enable_load_scaling=True, enable_throughput_scaling=False, scale_down_window_seconds=60)
    said = []
    for i in range(1, 60):
        steady(s, 5.0 * i, 3, rate=None, kv=0)
        said.append(s.tick())
        if said[-1].decision is not None:
            break
    assert said[-1].targets == {"prefill": 2, "decode": 2}
    assert said[-1].report.at >= 60.0
    assert said[0].role("prefill").reason == Reason.STABILISING


def test_a_slow_source_of_traffic_is_fresh_for_two_of_its_windows():
    s = stage(enable_load_scaling=True, enable_throughput_scaling=False)
    s.traffic(0.0, 60.0, 6000)
    s.engines("prefill", 100.0, {})
    s.fleet(100.0, prefill=1, decode=1)
    assert s.tick(100.0).role("prefill").known["demand_rps"] == pytest.approx(100.0)
