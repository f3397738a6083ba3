"""The load loop behind its gates."""

import pytest
from world import DGD, Stage, batch, fpm, held, queued

from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.schemas.reasons import Reason
from headrace.streams.agents.load import CALM_RUNS

UP, DOWN = {"queued_prefill": (4, 4000)}, {}  # on every prefill engine


@pytest.fixture
def stage() -> Stage:
    return Stage.load(mode="prefill").teach()


def sight(stage: Stage, at: float, **more: object) -> None:
    record = WorkerInventory(dgd=DGD, source="test", observed_at=at, roles={"prefill": RoleInventory(**more)})
    stage.give(record, at)


def says(stage: Stage) -> tuple[dict[str, int] | None, str]:
    return says_at(stage, stage.planner.next_tick_at)


def says_at(stage: Stage, at: float) -> tuple[dict[str, int] | None, str]:
    said = stage.tick(at)
    return said.targets, said.role("prefill").load_reason


@pytest.mark.parametrize(("load", "targets"), [(UP, {"prefill": 3}), (DOWN, {"prefill": 1}), (queued(2000), None)])
def test_one_replica_up_or_down(stage, load, targets):
    stage.fleet(4.0, prefill=2)
    stage.engines("prefill", 4.0, load, load)
    assert says(stage)[0] == targets


def test_without_an_inventory_record_of_the_role_it_holds(stage):
    stage.fleet(4.0, decode=2)
    stage.engines("prefill", 4.0, UP, UP)
    assert says(stage) == (None, Reason.NO_INVENTORY)


def test_without_a_fresh_fpm_it_holds():
    stage = Stage.load(mode="prefill").teach()
    stage.fleet(4.0, prefill=2)
    assert says(stage) == (None, Reason.NO_FPM_DATA)


def test_an_untrained_model_holds():
    stage = Stage.load(mode="prefill")
    stage.fleet(4.0, prefill=2)
    stage.engines("prefill", 4.0, UP, UP)
    assert says(stage) == (None, Reason.INSUFFICIENT_DATA)


# engines that do not speak


def test_one_silent_engine_stops_a_reduction(stage):
    stage.fleet(4.0, prefill=3)
    stage.engines("prefill", 4.0, DOWN, DOWN)
    assert says(stage) == (None, Reason.WORKER_COUNT_MISMATCH)


def test_half_of_the_engines_can_ask_for_another(stage):
    stage.fleet(4.0, prefill=4)
    stage.engines("prefill", 4.0, UP, UP)
    assert says(stage) == ({"prefill": 5}, Reason.SCALE_UP)


def test_fewer_than_half_of_the_engines_cannot(stage):
    stage.fleet(4.0, prefill=5)
    stage.engines("prefill", 4.0, UP, UP)
    assert says(stage) == (None, Reason.WORKER_COUNT_MISMATCH)


def test_more_engines_than_workers_are_a_mismatch(stage):
    stage.fleet(4.0, prefill=2)
    stage.engines("prefill", 4.0, UP, UP, UP)
    assert says(stage) == (None, Reason.WORKER_COUNT_MISMATCH)


def test_a_rank_that_is_silent_stops_a_reduction(stage):
    for rank, at in ((0, 14.0), (1, 2.0)):
        stage.engines("prefill", at, DOWN, DOWN, rank=rank)
    stage.fleet(14.0, prefill=2)
    assert says_at(stage, 15.0) == (None, Reason.WORKER_COUNT_MISMATCH)
    stage.engines("prefill", 19.0, DOWN, DOWN, rank=1)
    assert says_at(stage, 20.0) == ({"prefill": 1}, Reason.SCALE_DOWN)


def test_every_rank_must_be_over_the_target(stage):
    stage.fleet(4.0, prefill=2)
    stage.engines("prefill", 4.0, UP, UP)
    stage.engines("prefill", 4.0, UP, queued(2000), rank=1)
    assert says(stage)[0] is None
    other = Stage.load(mode="prefill").teach()
    other.fleet(4.0, prefill=2)
    for rank in range(2):
        other.engines("prefill", 4.0, UP, UP, rank=rank)
    assert says(other)[0] == {"prefill": 3}


# draining and starting workers


def test_draining_workers_do_not_hide_that_the_others_are_full(stage):
    sight(stage, 4.0, ready=2, draining=1)
    stage.engines("prefill", 4.0, UP, {"prefill": (1, 50)}, UP)  # worker 2 works off its rest
    assert says(stage) == ({"prefill": 3}, Reason.SCALE_UP)


def test_draining_workers_that_the_inventory_tells_apart_are_not_asked(stage):
    sight(stage, 4.0, ready=2, draining=1, workers=["1", "2"])
    stage.engines("prefill", 4.0, UP, UP, DOWN)
    assert says(stage) == ({"prefill": 3}, Reason.SCALE_UP)


def test_while_replicas_start_growth_waits(stage):  # dynamo#9774
    sight(stage, 4.0, ready=2, starting=1)
    stage.engines("prefill", 4.0, UP, UP)
    assert says(stage) == (None, Reason.SCALING_IN_PROGRESS)


def test_a_lasting_reduction_cancels_what_never_came_up(stage):  # case T22, dynamo#14251
    for i in range(1, CALM_RUNS + 1):
        sight(stage, 5.0 * i - 1, ready=2, starting=2, unschedulable=2)
        stage.engines("prefill", 5.0 * i - 1, DOWN, DOWN)
        targets, reason = says(stage)
        if i < CALM_RUNS:
            assert (targets, reason) == (None, Reason.SCALING_IN_PROGRESS)
    assert (targets, reason) == ({"prefill": 1}, Reason.SCALE_DOWN)


def test_at_the_least_count_a_lasting_calm_cancels_what_is_pending(stage):  # case T22
    for i in range(1, CALM_RUNS + 1):
        sight(stage, 5.0 * i - 1, ready=1, starting=1, unschedulable=1)
        stage.engines("prefill", 5.0 * i - 1, DOWN)
        targets, reason = says(stage)
    assert (targets, reason) == ({"prefill": 1}, Reason.SCALE_DOWN)


def test_a_dip_does_not_cancel_what_a_burst_has_asked_for(stage):  # case T22
    for i, load in enumerate((DOWN, DOWN, UP, DOWN, DOWN, queued(2000), DOWN, DOWN), start=1):
        sight(stage, 5.0 * i - 1, ready=2, starting=2)
        stage.engines("prefill", 5.0 * i - 1, load, load)
        assert says(stage) == (None, Reason.SCALING_IN_PROGRESS)


def test_a_pause_in_the_data_begins_the_count_of_calm_runs_anew(stage):
    for at in (5.0, 10.0, 30.0, 35.0):
        sight(stage, at - 1, ready=2, starting=2)
        if at != 30.0:
            stage.engines("prefill", at - 1, DOWN, DOWN)
        targets, reason = says_at(stage, at)
    assert (targets, reason) == (None, Reason.SCALING_IN_PROGRESS)


# missing limits


def test_a_missing_token_limit_of_prefill_does_not_stop_decode():  # case T16, dynamo#8196
    stage = Stage.load(mode="disagg").teach()
    bare = RoleInventory(ready=2)
    roles = {"prefill": bare, "decode": bare}
    stage.give(WorkerInventory(dgd=DGD, source="test", observed_at=4.0, roles=roles), 4.0)
    stage.engines("prefill", 4.0, queued(2000), queued(2000))
    stage.engines("decode", 4.0, held(40_000), held(40_000))
    assert stage.tick().targets == {"prefill": 2, "decode": 3}


def test_an_unknown_kv_capacity_never_scales_down_beyond_what_was_seen():
    stage = Stage.load(mode="decode", itl_ms=1000).teach()
    stage.give(WorkerInventory(dgd=DGD, source="test", observed_at=4.0, roles={"decode": RoleInventory(ready=2)}), 4.0)
    stage.engines("decode", 4.0, held(31_000), held(31_000))  # one would hold 62,000; 60,000 is the most seen
    said = stage.tick()
    assert (said.targets, said.role("decode").load_reason) == (None, Reason.SCALE_DOWN_REFUSED_CONSOLIDATION)
    stage.give(WorkerInventory(dgd=DGD, source="test", observed_at=9.0, roles={"decode": RoleInventory(ready=2)}), 9.0)
    stage.engines("decode", 9.0, held(29_000), held(29_000))
    assert stage.tick().targets == {"decode": 1}


def test_idle_engines_make_the_next_prompt_smaller(stage):  # case T13, dynamo#9756
    means = []
    for i in range(1, 20):
        stage.fleet(5.0 * i - 1, prefill=1)
        stage.engines("prefill", 5.0 * i - 1, {})
        stage.tick()
        means.append(stage.planner.models["prefill"].mean_isl)
    assert means == sorted(means, reverse=True)
    assert means[0] > means[-1]


# other targets


@pytest.mark.parametrize(
    ("target", "tokens", "prefill"),
    [("throughput", 8192, 3), ("throughput", 8191, None), ("latency", 820, 3), ("latency", 0, 1)],
)
def test_targets_without_an_sla_need_no_model(target, tokens, prefill):
    stage = Stage.of(mode="prefill", optimization_target=target)
    stage.fleet(4.0, prefill=2)
    stage.engines("prefill", 4.0, queued(tokens), queued(0))
    assert stage.tick().targets == (None if prefill is None else {"prefill": prefill})


def test_targets_without_an_sla_need_the_capacity_of_an_engine():
    stage = Stage.of(mode="decode", optimization_target="throughput")
    stage.give(WorkerInventory(dgd=DGD, source="test", observed_at=4.0, roles={"decode": RoleInventory(ready=2)}), 4.0)
    stage.engines("decode", 4.0, held(1000), held(1000))
    said = stage.tick()
    assert (said.targets, said.role("decode").load_reason) == (None, Reason.INSUFFICIENT_DATA)


def test_estimates_are_reported_where_a_gate_holds(stage):
    sight(stage, 4.0, ready=2, starting=1)
    stage.give(batch("prefill", 4.0, fpm("1", 1), fpm("2", 1)), 4.0)
    role = stage.tick().role("prefill")
    assert role.load_reason == Reason.SCALING_IN_PROGRESS
    assert role.estimated["ttft_ms"] == pytest.approx(30.4, rel=2e-2)
