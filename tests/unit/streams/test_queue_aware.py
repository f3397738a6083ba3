"""The queue-aware policy in the planner: up as far as needed and at once, down late, never on what is unknown."""

from typing import Any

import pytest
from world import DGD, Said, Stage, held, queued, window

from headrace.schemas.config import planner_config
from headrace.schemas.errors import ConfigError
from headrace.schemas.reasons import Reason
from headrace.streams.planner import Planner

SLA = {"ttft_ms": 300, "itl_ms": 20, "scale_down_window_seconds": 60}


def stage(**config: Any) -> Stage:
    """Both roles known in speed; one prefill engine does 33 requests/s of 1000 tokens flat out."""
    return Stage.load(capacity_policy="queue_aware", **{**SLA, **config}).teach()


def pass_time(
    s: Stage, until: float, rate: float, fleet: dict[str, int], tokens: int = 0, kv: int = 1000
) -> list[Said]:
    """Ticks up to `until` with steady traffic, a full report of every engine, and every decision carried out."""
    said = []
    counts = dict(fleet)
    while s.planner.next_tick_at <= until:
        at = s.planner.next_tick_at
        s.traffic(at - 5, at, round(5 * rate))
        s.engines("prefill", at, *[queued(tokens)] * counts["prefill"])
        s.engines("decode", at, *[held(kv)] * counts["decode"])
        s.fleet(at, **counts)
        said.append(s.tick())
        if said[-1].decision is not None:
            counts = dict(said[-1].decision.targets)
            s.apply(said[-1], at)
    return said


def test_a_fleet_is_sized_in_one_step_for_what_arrives() -> None:
    s = stage()
    said = pass_time(s, 10.0, rate=100.0, fleet={"prefill": 1, "decode": 1})
    assert said[-1].targets is not None or said[0].targets is not None
    first = next(x for x in said if x.targets)
    assert first.targets["prefill"] >= 4  # 100 requests/s x 30 ms = 3 engines' worth, and room for randomness
    assert first.targets["decode"] >= 4
    assert first.role("prefill").reason == Reason.SCALE_UP
    assert first.role("prefill").known["wanted"] == first.targets["prefill"]


def test_a_step_is_capped() -> None:
    s = stage(max_throughput_scaling_replicas=2)
    first = next(x for x in pass_time(s, 10.0, rate=400.0, fleet={"prefill": 1, "decode": 1}) if x.targets)
    assert first.targets == {"prefill": 3, "decode": 3}
    assert first.role("prefill").reason == Reason.MAX_STEP


def test_a_backlog_is_worked_off_by_more_engines_than_the_arrivals_need() -> None:
    calm, piled = stage(), stage()
    a = pass_time(calm, 10.0, rate=10.0, fleet={"prefill": 1, "decode": 2})
    b = pass_time(piled, 10.0, rate=10.0, fleet={"prefill": 1, "decode": 2}, tokens=2_000_000)
    assert all(x.role("prefill").target == 1 for x in a)
    # Of 2,000 queued requests one engine works off (33.3 - 10) x 30 s before others come: 1,300 are left, 65 a second
    # for 20 s. With 10 requests/s that arrive: 75 x 30 ms
    assert b[0].role("prefill").target == 3


def test_what_no_cache_holds_is_a_backlog_of_decode_and_a_crowd_is_not() -> None:
    # 5 requests/s that answer need one engine; those that are there would fill the caches of six
    s = stage()
    said = pass_time(s, 10.0, rate=5.0, fleet={"prefill": 1, "decode": 2}, kv=6_000_000)
    assert max(x.role("decode").known.get("wanted", 0) for x in said) > 3


def test_prompts_that_no_fleet_saves_are_in_the_report() -> None:
    s = stage(ttft_ms=31)  # 1,000 tokens take 30 ms, and lengths that nobody measured are taken as exponential
    said = pass_time(s, 10.0, rate=5.0, fleet={"prefill": 1, "decode": 2}, tokens=100)
    known = said[-1].role("prefill").estimated
    assert 0.2 < known["out_of_reach"] < 0.5, known
    assert known["sla_can_be_met"] == 0.0


def test_nothing_shrinks_before_the_window_has_passed_and_then_everything_does() -> None:
    s = stage()
    said = pass_time(s, 200.0, rate=5.0, fleet={"prefill": 4, "decode": 4})
    downs = [x for x in said if x.targets]
    assert downs
    first = downs[0]
    assert first.report.at >= 60.0
    assert first.targets == {"prefill": 1, "decode": 1}
    assert first.role("decode").reason == Reason.SCALE_DOWN
    before = [x for x in said if x.report.at < first.report.at]
    assert {x.role("prefill").reason for x in before} <= {Reason.STABILISING, Reason.NO_TRAFFIC_DATA}


def test_a_burst_within_the_window_keeps_what_it_needed() -> None:
    s = stage()
    burst = pass_time(s, 60.0, rate=100.0, fleet={"prefill": 4, "decode": 5})
    counts = {role: int(burst[-1].role(role).known["wanted"]) for role in ("prefill", "decode")}
    assert min(counts.values()) > 2
    after = pass_time(s, 100.0, rate=5.0, fleet=counts)
    assert all(x.targets is None for x in after)
    assert after[-1].role("prefill").reason == Reason.STABILISING


def test_no_traffic_is_unknown_and_holds_and_an_idle_window_is_known() -> None:
    s = stage()
    for at in (5.0, 10.0):
        s.engines("prefill", at, {}, {})
        s.engines("decode", at, {}, {})
        s.fleet(at, prefill=2, decode=2)
        said = s.tick(at)
        assert said.targets is None
        assert said.role("prefill").reason == Reason.STABILISING  # idle engines could go, but not at once
    pass_time(s, 20.0, rate=5.0, fleet={"prefill": 2, "decode": 2})  # lengths must have been seen once
    idle = pass_time(s, 400.0, rate=0.0, fleet={"prefill": 2, "decode": 2}, kv=0)
    assert idle[-1].role("prefill").target == 1


def test_a_silent_engine_forbids_a_scale_down() -> None:
    s = stage()
    for i in range(1, 60):
        at = 5.0 * i
        s.traffic(at - 5, at, 10)
        s.engines("prefill", at, {})  # one of four speaks
        s.engines("decode", at, *[held(500)] * 4)
        s.fleet(at, prefill=4, decode=4)
        said = s.tick(at)
        assert said.targets is None or said.targets["prefill"] == 4
        if said.decision is not None:
            s.apply(said, at)
    assert said.role("prefill").reason == Reason.WORKER_COUNT_MISMATCH


def test_one_decision_is_outstanding_at_a_time() -> None:
    s = stage()
    s.traffic(0.0, 5.0, 500)
    s.engines("prefill", 5.0, {})
    s.engines("decode", 5.0, {})
    s.fleet(5.0, prefill=1, decode=1)
    assert s.tick(5.0).targets is not None
    s.traffic(5.0, 10.0, 1000)
    s.fleet(10.0, prefill=1, decode=1)
    said = s.tick(10.0)
    assert said.targets is None
    assert said.role("prefill").reason == Reason.SCALING_IN_PROGRESS


def test_the_start_up_time_is_measured_and_widens_the_window() -> None:
    s = stage()
    s.traffic(0.0, 5.0, 500)
    s.engines("prefill", 5.0, {})
    s.engines("decode", 5.0, {})
    s.fleet(5.0, prefill=1, decode=1)
    said = s.tick(5.0)
    s.apply(said, 185.0)
    counts = said.targets
    assert counts is not None
    later = pass_time(s, 500.0, rate=100.0, fleet=counts)
    assert said.role("prefill").estimated["startup_s"] == 30.0  # nothing has been measured
    assert later[-1].role("prefill").estimated["startup_s"] == pytest.approx(180.0)


def test_a_restored_planner_goes_on_byte_for_byte() -> None:
    s = stage()
    pass_time(s, 100.0, rate=40.0, fleet={"prefill": 2, "decode": 2})
    twin = Stage(Planner.restore(s.planner.snapshot()), dict(s.counters))
    counts = s.planner.ledger.in_force or {"prefill": 2, "decode": 2}
    a = pass_time(s, 300.0, rate=4.0, fleet=counts)
    b = pass_time(twin, 300.0, rate=4.0, fleet=counts)
    assert [x.records for x in a] == [x.records for x in b]
    assert s.planner.snapshot() == twin.planner.snapshot()


def test_a_window_from_a_clock_that_is_years_ahead_does_not_stay_recent_for_years() -> None:
    s = stage()
    s.give(window(1e9, 1e9 + 5, 50_000), 1.0)
    said = pass_time(s, 700.0, rate=5.0, fleet={"prefill": 2, "decode": 2})
    assert said[-1].role("prefill").target == 1


def test_an_aggregated_fleet_is_sized_for_both_targets() -> None:
    s = Stage.load(capacity_policy="queue_aware", mode="agg", ttft_ms=500, itl_ms=50).teach()
    s.traffic(0.0, 5.0, 250)
    s.engines("agg", 5.0, {})
    s.fleet(5.0, agg=1)
    said = s.tick(5.0)
    assert said.targets is not None
    assert said.targets["agg"] > 1
    assert said.role("agg").reason in (Reason.SCALE_UP, Reason.MAX_STEP)


def test_the_policy_is_for_the_sla_target_alone() -> None:
    config = planner_config({"optimization_target": "throughput", "capacity_policy": "queue_aware"})
    assert not config.queue_aware
    with pytest.raises(ConfigError, match="capacity_policy"):
        planner_config({"capacity_policy": "oracle"})
    assert Planner(config, DGD).config is config
