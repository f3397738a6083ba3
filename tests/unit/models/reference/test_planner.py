"""The reference planner as a whole: its stages, its schedule, and what it remembers."""

import pytest
from reference_stage import ENGINE, agg_seen, both_seen, learned

from headrace.models.reference.forecast import Forecast, Prediction, chain
from headrace.models.reference.merge import Bound, Merged, Opinion, Target, merge
from headrace.models.reference.pipeline import Action, run_pipeline
from headrace.models.reference.planner import ReferencePlanner
from headrace.models.reference.plugins import Breaker, Plugin, Registry, Stage
from headrace.models.reference.settings import Seen, Settings, Traffic
from headrace.schemas.base import AGG, DECODE, PREFILL
from headrace.schemas.config import planner_config

BASELINE = {"prefill": 2, "decode": 3}
TRAFFIC = Traffic(duration_s=180, num_req=18000, isl=1000, osl=200)


def says(name: str, priority: int, *targets: tuple[str, int | None, Bound], final: bool = False) -> Opinion:
    return Opinion(name, priority, tuple(Target(*t) for t in targets), final=final)


@pytest.mark.parametrize(
    ("opinions", "decode"),
    [
        ([], 3),
        ([says("a", 10, ("decode", 5, Bound.SET)), says("b", 0, ("decode", 7, Bound.SET))], 7),
        ([says("a", 10, ("decode", 5, Bound.SET)), says("b", 10, ("decode", 7, Bound.SET))], 5),
        ([says("a", 1, ("decode", 8, Bound.AT_LEAST), ("decode", 4, Bound.AT_MOST), ("decode", 5, Bound.SET))], 8),
        ([says("a", 1, ("decode", 1, Bound.AT_MOST))], 1),
        ([says("a", 1, ("decode", None, Bound.SET))], 3),
        ([says("a", 9, ("decode", 10, Bound.AT_MOST), final=True), says("b", 0, ("decode", 4, Bound.SET))], 10),
        ([says("a", 1, ("decode", -3, Bound.SET))], 0),
    ],
)
def test_opinions_are_merged_by_priority_within_their_bounds(opinions, decode) -> None:
    assert dict(merge(opinions, BASELINE).targets)["decode"] == decode


def test_a_rejection_is_stronger_than_a_last_word() -> None:
    opinions = [says("a", 0, ("decode", 9, Bound.SET), final=True), Opinion("r", 99, rejection="no")]
    assert merge(opinions, BASELINE) == Merged(None, None, rejection="r: no")


def test_a_stage_of_bounds_drops_counts() -> None:
    found = merge([says("a", 1, ("decode", 9, Bound.SET), ("decode", 2, Bound.AT_MOST))], BASELINE, set_allowed=False)
    assert dict(found.targets) == {"decode": 2, "prefill": 2}
    assert found.dropped == ("decode",)


def test_the_first_to_predict_something_is_right() -> None:
    found = chain([Forecast("b", 5, Prediction(num_req=9, osl=3)), Forecast("a", 0, Prediction(num_req=5, isl=10))])
    assert found.prediction == Prediction(num_req=5, isl=10, osl=3)


def failing(context) -> None:
    raise RuntimeError


def test_a_plugin_that_fails_is_left_alone_and_tried_again_later() -> None:
    registry = Registry(breaker=Breaker(failures=2, cooldown_s=30))
    registry.register(Plugin("a", Stage.PROPOSE, 1, failing))
    called = [run_pipeline(registry, BASELINE, now).called for now in (0.0, 5.0, 10.0, 34.0, 35.0, 40.0, 65.0)]
    assert called == [["a"], ["a"], [], [], ["a"], [], ["a"]]


def test_a_held_opinion_is_replayed_until_it_is_due_again() -> None:
    registry = Registry()
    opinion = says("a", 1, ("decode", 5, Bound.SET), final=True)
    registry.register(Plugin("a", Stage.PROPOSE, 1, lambda _: opinion, interval_s=15, hold_last=True))
    runs = [run_pipeline(registry, BASELINE, now) for now in (5.0, 15.0, 20.0)]
    assert [run.targets["decode"] for run in runs] == [3, 5, 5]
    assert [run.called for run in runs] == [[], ["a"], []]


def test_without_workers_and_opinions_nothing_is_applied() -> None:
    assert run_pipeline(Registry(), {}, 0.0).action is Action.NO_TARGETS


def planner(mode: str = "disagg", **more) -> ReferencePlanner:
    options = {"optimization_target": "sla", "load_predictor": "constant", "max_gpu_budget": -1, **more}
    found = ReferencePlanner(Settings(mode=mode, **options))
    found.set_engines(dict.fromkeys(found.settings.roles, ENGINE))
    found.bootstrap({role: learned(role) for role in found.settings.roles})
    return found


def with_traffic(seen: Seen) -> Seen:
    return Seen(seen.pools, seen.fpms, TRAFFIC)


def test_a_forecast_alone_scales_at_once_and_without_a_step_limit() -> None:
    p = planner()
    schedule = p.start(0.0)
    while not schedule.throughput:
        told = p.tick(schedule.at, both_seen([0], [5000]))
        assert told.targets is None
        schedule = told.schedule
    assert (schedule.at, schedule.full_traffic, schedule.window_s) == (180.0, True, 180.0)
    told = p.tick(schedule.at, with_traffic(both_seen([0], [5000])))
    assert told.targets == {PREFILL: 3, DECODE: 5}
    assert (told.throughput.reason, told.load.reason) == ("scale", "disabled")


def test_with_the_load_loop_a_forecast_is_a_floor_of_the_same_tick() -> None:
    p = planner(enable_load_scaling=True, throughput_adjustment_interval_seconds=10)
    p.start(0.0)
    p.tick(5.0, both_seen([0], [5000]))
    told = p.tick(10.0, with_traffic(both_seen([0], [5000])))
    assert told.floors == {PREFILL: 3, DECODE: 5}
    assert told.targets == dict(told.floors)
    assert told.throughput.reason == "set_lower_bound"


def test_a_window_without_traffic_is_asked_for_again_on_every_tick() -> None:
    p = planner(enable_load_scaling=True, throughput_adjustment_interval_seconds=10)
    p.start(0.0)
    p.tick(5.0, both_seen([0], [5000]))
    told = p.tick(10.0, both_seen([0], [5000]))
    assert told.throughput.reason == "no_traffic_data"
    assert told.schedule.traffic
    assert not told.schedule.throughput


def test_a_late_tick_delays_all_that_follow() -> None:
    p = planner(enable_load_scaling=True, enable_throughput_scaling=False)
    p.start(0.0)
    assert p.tick(5.4, both_seen([0], [5000])).schedule.at == pytest.approx(10.4)


def test_a_base_tick_is_the_common_divisor_of_the_intervals() -> None:
    p = planner(
        enable_load_scaling=True, load_adjustment_interval_seconds=10, throughput_adjustment_interval_seconds=45
    )
    assert p.start(0.0).at == 5.0


def test_a_constraint_may_move_what_nobody_proposed() -> None:
    p = planner("agg", enable_load_scaling=True, enable_throughput_scaling=False, itl_ms=50)
    bound = says("cap", 10, ("decode", 4, Bound.AT_LEAST))
    p.registry.register(Plugin("cap", Stage.CONSTRAIN, 10, lambda _: bound))
    p.start(0.0)
    assert p.tick(5.0, agg_seen([5000])).targets == {AGG: 4}


def test_settings_are_taken_from_a_configuration_of_ours() -> None:
    config = planner_config({"optimization_target": "sla", "ttft_ms": 123.0, "load_predictor": "kalman"})
    settings = Settings.of(config)
    assert (settings.ttft_ms, settings.load_predictor, settings.roles) == (123.0, "kalman", (PREFILL, DECODE))
