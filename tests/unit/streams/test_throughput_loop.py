"""The throughput loop: forecast, floors, steps. Numbers of capacity: reference-semantics 5.5."""

import pytest
from world import DGD, Stage, batch, fpm, held, prediction

from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.schemas.reasons import Reason


def planned(stage: Stage, requests: int | None = 18_000, **counts: int):
    """One throughput interval of traffic, then its tick."""
    end = stage.planner.next_tick_at
    stage.traffic(end - 180, end, requests)
    stage.fleet(end - 1, **counts)
    return stage.tick()


def stage_of(mode: str, **config: object) -> Stage:
    return Stage.throughput(mode=mode, **config).teach(170.0)


@pytest.mark.parametrize(
    ("mode", "targets"),
    [
        ("disagg", {"prefill": 3, "decode": 5}),
        ("prefill", {"prefill": 3}),
        ("decode", {"decode": 5}),
        ("agg", {"agg": 6}),
    ],
)
def test_every_mode_is_sized_for_its_forecast(mode, targets):
    said = planned(stage_of(mode), **dict.fromkeys(targets, 2))
    assert said.targets == targets
    for role in targets:
        assert (said.role(role).throughput_reason, said.role(role).reason) == (Reason.SCALE, Reason.SCALE)
        assert said.role(role).known["demand_rps"] == 100.0
    assert said.report.forecast["requests_per_s"] == 100.0


@pytest.mark.parametrize(
    ("mode", "floors"),
    [
        ("disagg", {"prefill": 3, "decode": 5}),
        ("prefill", {"prefill": 3}),
        ("decode", {"decode": 5}),
        ("agg", {"agg": 6}),
    ],
)
def test_with_the_load_loop_the_sizes_are_lower_bounds(mode, floors):
    stage = stage_of(mode, enable_load_scaling=True)
    stage.traffic(0, 180, 18_000)
    stage.fleet(179.0, **dict.fromkeys(floors, 7))
    said = stage.tick(180.0)
    assert {role: r.floor for role, r in said.report.roles.items()} == floors
    assert {r.throughput_reason for r in said.report.roles.values()} == {Reason.SET_LOWER_BOUND}
    assert said.targets is None


def test_no_traffic_scales_down_to_the_floor():  # case T1, dynamo#6985: 7 for ever after load stops
    stage = stage_of("decode")
    assert planned(stage, 28_000, decode=7).role("decode").target == 7
    said = planned(stage, 0, decode=7)
    assert said.report.forecast["requests_per_s"] == 0.0
    assert said.targets == {"decode": 1}


def test_an_interval_that_could_not_be_read_holds():  # case T2, dynamo#14765
    said = planned(stage_of("decode"), None, decode=7)
    assert (said.targets, said.role("decode").target) == (None, 7)
    assert said.role("decode").reason == Reason.NO_TRAFFIC_DATA
    assert said.report.unknown["traffic"].startswith("only 0 s of 180 s are known")


def test_without_an_estimate_a_count_below_the_least_is_lifted():  # case T3, dynamo#14575
    stage = Stage.throughput(mode="decode", min_endpoint=3)
    said = planned(stage, decode=1)
    assert said.targets == {"decode": 3}
    assert said.role("decode").reason == Reason.MODEL_NOT_READY
    assert [clamp.rule for clamp in said.role("decode").clamps] == [Reason.MIN_ENDPOINT]


def test_without_an_estimate_a_count_at_the_least_stays():  # case T3
    stage = Stage.throughput(mode="decode", min_endpoint=3)
    said = planned(stage, decode=4)
    assert (said.targets, said.role("decode").reason) == (None, Reason.MODEL_NOT_READY)


def test_traffic_that_never_had_a_length_sizes_nothing():  # reference-semantics 5.5: 0, 0, 0 is model_not_ready
    said = planned(stage_of("disagg"), 0, prefill=2, decode=2)
    assert said.targets is None
    assert {r.throughput_reason for r in said.report.roles.values()} == {Reason.MODEL_NOT_READY}


def test_half_a_deployment_is_not_sized():
    stage = Stage.throughput(mode="disagg")
    stage.give(batch("prefill", 170.0, *(fpm("1", c, wall=0.01, prefill=(1, 100)) for c in range(1, 20))), 170.0)
    said = planned(stage, prefill=1, decode=1)
    assert said.role("prefill").throughput_reason == Reason.PARTNER_NOT_READY
    assert said.role("decode").throughput_reason == Reason.MODEL_NOT_READY
    assert said.targets is None


@pytest.mark.parametrize(("now", "requests", "to"), [(1, 90_000, 9), (25, 180, 17), (12, 90_000, 20)])
def test_one_forecast_moves_at_most_eight_replicas(now, requests, to):  # case T25, dynamo#14296
    said = planned(stage_of("decode"), requests, decode=now)
    assert said.targets == {"decode": to}
    assert said.role("decode").reason == Reason.MAX_STEP
    assert said.role("decode").known["wanted"] in (22.0, 1.0)


def test_cache_hits_save_prefill_workers_and_no_decode_workers():  # case T19, dynamo#8314, #11005
    stage = stage_of("disagg")
    stage.traffic(0, 180, 18_000, kv_hit_rate=0.5)
    stage.fleet(179.0, prefill=3, decode=5)
    assert stage.tick().targets == {"prefill": 2, "decode": 5}


@pytest.mark.parametrize(("nextn", "decode"), [(0, 5), (3, 3)])
def test_accepted_tokens_count_with_speculation_alone(nextn, decode):
    stage = stage_of("decode", speculative_nextn=nextn)
    stage.traffic(0, 180, 18_000, accept_length=2.0)
    stage.fleet(179.0, decode=1)
    assert stage.tick().targets == {"decode": decode}


def test_a_worker_of_several_ranks_serves_with_all_of_them():
    stage = stage_of("decode")
    for rank in range(2):
        stage.engines("decode", 179.0, *[held(1000)] * 5, rank=rank)
    said = planned(stage, decode=5)
    assert said.role("decode").estimated["capacity_rps"] == pytest.approx(2 * 23.1958763, rel=1e-3)
    assert said.targets == {"decode": 3}


def test_a_target_that_no_load_meets_is_said_and_sized_by_demand():  # case T15, dynamo#8861
    said = planned(stage_of("decode", itl_ms=5), 0, decode=2)
    assert said.targets is None  # the first interval had no lengths
    stage = stage_of("decode", itl_ms=5)
    said = planned(stage, 18, decode=2)
    assert said.targets == {"decode": 1}
    assert said.role("decode").estimated["capacity_meets_sla"] == 0.0
    assert any("no load of a decode engine meets the SLA" in note for note in said.report.notes)


def test_a_failed_read_keeps_the_last_floor_and_not_for_ever():  # reference weak spot 8
    stage = Stage.of(mode="decode", ttft_ms=500, itl_ms=50, enable_load_scaling=True, load_predictor="constant")
    stage.teach(170.0)
    stage.traffic(0, 180, 18_000)
    floors = []
    for i in range(1, 181):
        stage.fleet(5.0 * i - 1, decode=6)
        if i > 36 and i % 36 == 0:
            stage.traffic(5.0 * i - 180, 5.0 * i, None)
        floors.append(stage.tick().role("decode").floor)
    assert floors[:35] == [None] * 35
    assert floors[35:143] == [5] * 108  # three intervals of 180 s
    assert floors[143:] == [None] * 37


def test_an_unknown_count_sets_no_floor():
    stage = stage_of("decode")
    stage.traffic(0, 180, 18_000)
    said = stage.tick()
    assert (said.targets, said.role("decode").floor) == (None, None)


def test_an_unknown_kv_capacity_scales_down_no_further_than_was_seen_to_be_held():
    stage = Stage.throughput(mode="decode")
    lesson = [
        fpm("11", c, wall=0.005 + 5e-5 * n, decode=(n, 1100 * n)) for c, n in enumerate([1, 1, 1, *range(1, 9)], 1)
    ]
    stage.give(batch("decode", 170.0, *lesson), 170.0)
    stage.traffic(0, 180, 180 * 100)
    bare = {"decode": RoleInventory(ready=8, gpus_per_replica=1)}
    stage.give(WorkerInventory(dgd=DGD, source="test", observed_at=179.0, roles=bare), 179.0)
    # With the default of 2,000,000 tokens an engine would serve far more; with 8 requests at once, 7.4 a second.
    assert stage.tick().targets is None


def test_an_outside_forecast_is_planned_with_and_named_as_the_cause():
    stage = stage_of("decode")
    stage.give(prediction(100.0, 170.0), 170.0)
    stage.fleet(179.0, decode=1)
    said = stage.tick()
    assert said.targets == {"decode": 5}
    assert said.decision.causes.prediction == "oracle:170"


def test_between_two_intervals_nothing_is_asked_for():
    stage = Stage.throughput(mode="decode", scheduling={"scale_interval_seconds": 60.0}).teach(170.0)
    stage.fleet(59.0, decode=2)
    said = stage.tick()
    assert (said.records, said.role("decode").throughput_reason) == ([said.report], Reason.NOT_DUE)
