"""Configuration revisions while the planner runs."""

import pytest
from world import DGD, Stage, batch, fpm, queued

from headrace.schemas.config import planner_config
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.errors import RecordError
from headrace.schemas.reasons import Reason
from headrace.streams.planner import Planner

BASE = {"mode": "prefill", "optimization_target": "sla", "ttft_ms": 100, "itl_ms": 10, "max_gpu_budget": -1}
BASE |= {"capacity_policy": "reference"}
LOAD = BASE | {"enable_load_scaling": True, "enable_throughput_scaling": False}
BOTH = BASE | {"enable_load_scaling": True, "load_predictor": "constant"}


def revise(stage: Stage, revision: int, raw: dict[str, object], at: float = 1.0) -> None:
    stage.give(ConfigRevision(dgd=DGD, revision=revision, at=at, config=raw), at)


def steady(stage: Stage, at: float, queue: int = 2000, workers: int = 2) -> None:
    stage.fleet(at, prefill=workers)
    stage.engines("prefill", at, *[queued(queue)] * workers)


@pytest.fixture
def stage() -> Stage:
    return Stage(Planner(planner_config(LOAD), DGD)).teach()


def test_a_newer_revision_is_in_force_from_the_next_tick(stage):
    revise(stage, 3, LOAD | {"min_endpoint": 4})
    steady(stage, 4.0)
    said = stage.tick()
    assert (said.targets, said.report.config_revision) == ({"prefill": 4}, 3)
    assert said.decision.causes.config_revision == 3


@pytest.mark.parametrize("revision", [0, 2, 3])
def test_an_older_or_repeated_revision_changes_nothing(stage, revision):
    revise(stage, 3, LOAD | {"ttft_ms": 200})
    revise(stage, revision, LOAD | {"ttft_ms": 900})
    assert (stage.planner.config.ttft_ms, stage.planner.config_revision) == (200, 3)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (LOAD | {"ttft_ms": -1}, "`$.ttft_ms`"),
        (LOAD | {"ttft_mss": 1}, "did you mean 'ttft_ms'?"),
        (LOAD | {"x" * 100_000: 1}, "unknown key 'xxx"),
        (LOAD | {"mode": "decode"}, "mode cannot change from 'prefill' to 'decode'"),
        (BOTH | {"load_predictor": "arma"}, "load_predictor 'arma' is unknown"),
        (LOAD | {"enable_load_scaling": False}, "nothing would ever be decided"),
        (LOAD | {"scheduling": {"scale_interval_seconds": 3.0}}, "must divide"),
        (LOAD | {"ttft_ms": 10**400}, "out of range"),
        (LOAD | {"min_endpoint": None}, "`$.min_endpoint`"),
    ],
)
def test_a_bad_revision_is_refused_with_a_note_and_the_old_one_stays(stage, raw, why):  # row 65, dynamo#14218
    revise(stage, 3, raw)
    steady(stage, 4.0)
    said = stage.tick()
    (note,) = said.report.notes
    assert note.startswith("configuration revision 3 refused, revision 0 stays: ")
    assert why in note
    assert len(note) <= 500
    assert said.report.config_revision == 0


def test_a_good_revision_may_follow_a_bad_one_of_the_same_number(stage):
    revise(stage, 3, LOAD | {"ttft_ms": -1})
    revise(stage, 3, LOAD | {"ttft_ms": 200})
    assert (stage.planner.config.ttft_ms, stage.planner.config_revision) == (200, 3)


def test_what_was_learned_and_decided_stays(stage):
    steady(stage, 4.0, queue=4000)
    said = stage.tick()
    revise(stage, 1, LOAD | {"ttft_ms": 200}, 6.0)
    assert stage.planner.ledger.outstanding is said.decision
    assert stage.planner.models["prefill"].mean_isl == pytest.approx(1020)
    stage.apply(said, 7.0)
    steady(stage, 9.0, queue=8000, workers=3)
    assert stage.tick().decision.decision_id == 1


def test_other_intervals_hold_from_now_on(stage):
    for at in range(5, 1001, 5):
        stage.tick(float(at))
    revise(stage, 1, LOAD | {"load_adjustment_interval_seconds": 60}, 1001.0)
    assert stage.planner.next_tick_at == 1020.0
    assert stage.tick().report.loops == ["load"]
    revise(stage, 2, LOAD | {"load_adjustment_interval_seconds": 0.5}, 1021.0)
    assert stage.planner.next_tick_at == 1020.5


def test_a_lowered_budget_shrinks_at_the_next_tick(stage):  # row 65, dynamo#13038
    steady(stage, 4.0, workers=3)
    assert stage.tick().targets is None
    revise(stage, 1, LOAD | {"max_gpu_budget": 2}, 6.0)
    steady(stage, 9.0, workers=3)
    said = stage.tick()
    assert (said.targets, said.role("prefill").reason) == ({"prefill": 2}, Reason.GPU_BUDGET_CEILING)


def test_another_ack_timeout_holds_for_the_decision_that_is_outstanding(stage):
    steady(stage, 4.0, queue=4000)
    stage.tick()
    revise(stage, 1, LOAD | {"ack_timeout_seconds": 20}, 6.0)
    steady(stage, 24.0, queue=4000)
    assert stage.tick(25.0).decision.decision_id == 1


def test_stale_ages_and_skews_hold_from_now_on(stage):
    steady(stage, 4.0)
    revise(stage, 1, LOAD | {"fpm_stale_after_seconds": 2, "inventory_stale_after_seconds": 3}, 5.0)
    said = stage.tick(10.0)
    assert said.role("prefill").unknown["inventory"].endswith("(limit 3 s)")
    assert said.role("prefill").unknown["fpm"].endswith("(limit 2 s)")


def test_floors_and_the_forecast_outlive_a_revision():
    stage = Stage(Planner(planner_config(BOTH), DGD)).teach(170.0)
    stage.traffic(0, 180, 18_000)
    steady(stage, 179.0)
    floor = stage.tick(180.0).role("prefill").floor
    assert floor == 3
    revise(stage, 1, BOTH | {"ttft_ms": 400, "throughput_adjustment_interval_seconds": 60}, 181.0)
    steady(stage, 184.0)
    assert stage.tick(185.0).role("prefill").floor == 3
    assert stage.planner.forecasts.forecast("rate") == 100.0


def test_floors_of_a_loop_that_was_switched_off_hold_no_longer():
    stage = Stage(Planner(planner_config(BOTH), DGD)).teach(170.0)
    stage.traffic(0, 180, 18_000)
    steady(stage, 179.0)
    assert stage.tick(180.0).role("prefill").floor == 3
    revise(stage, 1, LOAD, 181.0)
    steady(stage, 184.0)
    assert stage.tick(185.0).role("prefill").floor is None


@pytest.mark.parametrize("revision", [2**62, 2**63 - 1])
def test_a_revision_that_none_could_follow_is_refused(stage, revision):
    with pytest.raises(RecordError, match=r"2\^62"):
        revise(stage, revision, LOAD | {"ttft_ms": 200})
    assert stage.planner.config_revision == 0


def test_another_predictor_or_scale_goes_on_with_what_the_one_before_had_seen():
    stage = Stage(Planner(planner_config(BOTH), DGD)).teach(170.0)
    stage.traffic(0, 180, 18_000)
    stage.tick(180.0)
    revise(stage, 1, BOTH | {"load_predictor": "kalman"}, 181.0)
    assert stage.planner.forecasts.forecast("rate") == 100.0
    revise(stage, 2, BOTH | {"load_predictor": "kalman", "load_predictor_log1p": True}, 182.0)
    assert stage.planner.forecasts.forecast("rate") == 100.0
    assert stage.planner.config_revision == 2


def test_a_throughput_loop_that_is_switched_on_begins_its_first_interval_then():
    stage = Stage(Planner(planner_config(LOAD), DGD)).teach(3580.0)
    for i in range(60):
        stage.traffic(60.0 * i, 60.0 * (i + 1), 6000)
    stage.tick(3600.0)
    revise(stage, 1, BOTH, 3600.0)
    stage.traffic(3600, 3780, 1800)
    assert stage.tick(3780.0).report.forecast["requests_per_s"] == 10.0


def test_more_observations_hold_what_was_learned_until_they_are_there(stage):
    revise(stage, 1, LOAD | {"load_min_observations": 6})
    steady(stage, 4.0)
    assert stage.tick().role("prefill").load_reason == Reason.INSUFFICIENT_DATA
    stage.give(batch("prefill", 6.0, *(fpm("1", c, wall=0.03, prefill=(1, 1000)) for c in range(10, 20))), 6.0)
    steady(stage, 9.0)
    stage.engines("prefill", 9.0, *[queued(2000)] * 2)
    assert stage.tick().role("prefill").load_reason != Reason.INSUFFICIENT_DATA


def test_other_cells_are_learned_anew_and_said_so(stage):
    revise(stage, 1, LOAD | {"fpm_sample_bucket_size": 64})
    steady(stage, 4.0)
    said = stage.tick()
    assert said.role("prefill").load_reason == Reason.INSUFFICIENT_DATA
    assert said.report.notes == ["fpm_sample_bucket_size has changed: engine speeds are learned anew"]
    stage.give(batch("prefill", 6.0, *(fpm("9", c, wall=0.03, prefill=(1, 1000)) for c in range(1, 20))), 6.0)
    stage.tick()
    assert stage.planner.models["prefill"].mean_isl == 1000.0


# advice


def test_advice_is_marked_said_once_and_never_waited_for(stage):  # row 64, dynamo#8114
    revise(stage, 1, LOAD | {"advisory": True})
    steady(stage, 4.0, queue=4000)
    said = stage.tick()
    assert (said.targets, said.decision.advisory, said.report.outstanding) == ({"prefill": 3}, True, None)
    for i in range(2, 6):
        steady(stage, 5.0 * i - 1, queue=4000)
        said = stage.tick()
        assert (said.targets, said.role("prefill").target) == (None, 3)
    assert said.report.notes == ["advisory decision 0 says this already"]
    steady(stage, 29.0, queue=0)
    said = stage.tick()
    assert (said.targets, said.decision.decision_id) == ({"prefill": 1}, 1)


def test_from_advice_to_action_the_same_target_is_now_asked_for(stage):
    revise(stage, 1, LOAD | {"advisory": True})
    steady(stage, 4.0, queue=4000)
    stage.tick()
    revise(stage, 2, LOAD, 6.0)
    steady(stage, 9.0, queue=4000)
    said = stage.tick()
    assert (said.targets, said.decision.advisory, said.decision.decision_id) == ({"prefill": 3}, False, 1)
    assert said.report.outstanding == 1


def test_what_was_applied_before_advice_is_not_in_force_after_it(stage):
    steady(stage, 4.0, queue=4000)
    stage.apply(stage.tick(), 6.0)  # 3 workers
    revise(stage, 1, LOAD | {"advisory": True}, 7.0)
    steady(stage, 9.0, workers=5)
    said = stage.tick()  # an operator chose 5: no drift
    assert (said.targets, said.role("prefill").target) == (None, 5)
    revise(stage, 2, LOAD, 11.0)
    for i in range(3, 20):
        steady(stage, 5.0 * i - 1, workers=5)
        assert stage.tick().targets is None


def test_a_decision_that_is_outstanding_is_still_waited_for_in_advisory_mode(stage):
    steady(stage, 4.0, queue=4000)
    said = stage.tick()
    revise(stage, 1, LOAD | {"advisory": True}, 6.0)
    steady(stage, 9.0, queue=4000)
    assert stage.tick().report.outstanding == 0
    stage.apply(said, 11.0)
    steady(stage, 14.0, queue=4000, workers=3)
    said = stage.tick()
    assert (said.targets, said.decision.advisory) == ({"prefill": 4}, True)
