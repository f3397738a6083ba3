"""A role as one tick sees it."""

import pytest
from msgspec.structs import replace
from world import DGD, LIMITS, Stage, batch, fpm, held, inventory

from headrace.models.perf.latency import EngineLimits
from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory
from headrace.streams.agents.view import RoleView, look


def view(stage: Stage, now: float, role: str = "decode") -> RoleView:
    m = stage.planner._memory
    m.fpm.begin_tick(now)
    return look(role, now, config=m.config, fpm=m.fpm, inventory=m.inventory, ledger=m.ledger)


@pytest.fixture
def stage() -> Stage:
    return Stage.load(mode="decode")


def sighted(at: float, **more: object) -> WorkerInventory:
    return WorkerInventory(dgd=DGD, source="test", observed_at=at, roles={"decode": RoleInventory(**more)})


def test_current_counts_ready_and_starting_workers_and_not_draining_ones(stage):
    stage.give(sighted(1.0, ready=3, starting=2, draining=4), 1.0)
    assert (view(stage, 1.0).current, view(stage, 1.0).ready) == (5, 3)


def test_until_the_inventory_can_show_it_what_was_applied_is_current(stage):
    stage.fleet(1.0, decode=1)
    stage.planner.ledger.in_force, stage.planner.ledger.changed_at = {"decode": 4}, 2.0
    assert (view(stage, 3.0).settling, view(stage, 3.0).current) == (True, 4)
    stage.fleet(4.0, decode=3)
    assert (view(stage, 5.0).settling, view(stage, 5.0).current) == (False, 3)


def test_a_source_whose_clock_is_behind_does_not_settle_for_ever(stage):
    stage.planner.ledger.in_force, stage.planner.ledger.changed_at = {"decode": 4}, 1000.0
    stage.give(inventory(1.0, decode=3), 1031.0)  # its clock is a quarter of an hour behind
    assert view(stage, 1031.0).settling is False


def test_limits_that_an_engine_has_not_said_are_the_references(stage):
    stage.give(sighted(1.0, ready=1), 1.0)
    assert view(stage, 1.0).limits == EngineLimits(8192, 512, 2_000_000)
    stage.give(sighted(2.0, ready=1, capabilities=Capabilities(max_kv_tokens=5)), 2.0)
    assert view(stage, 2.0).limits == EngineLimits(8192, 512, 5)


def test_an_unknown_kv_capacity_is_what_was_seen_to_be_held_when_a_reduction_is_judged(stage):
    stage.give(sighted(1.0, ready=1), 1.0)
    for counter, kv in enumerate((10, 10, 10, 7000, 300), start=1):
        stage.give(batch("decode", 1.0, fpm("11", counter, wall=0.01, decode=(1, kv))), 1.0)
    assert view(stage, 1.0).held_limits.max_kv_tokens == 7001
    stage.give(sighted(2.0, ready=1, capabilities=LIMITS), 2.0)
    assert view(stage, 2.0).held_limits.max_kv_tokens == 100_000


@pytest.mark.parametrize(("configured", "said", "gpus"), [(None, 2, 2), (4, 2, 4), (None, None, None), (None, 0, None)])
def test_the_gpus_of_a_replica_are_as_configured_else_as_the_inventory_says(configured, said, gpus):
    stage = Stage.load(mode="decode", decode_engine_num_gpu=configured)
    stage.give(sighted(1.0, ready=1, gpus_per_replica=said), 1.0)
    assert view(stage, 1.0).gpus == gpus


def test_engines_are_one_load_per_rank(stage):
    stage.fleet(1.0, decode=2)
    for rank in range(2):
        stage.engines("decode", 1.0, held(1000), held(2000), rank=rank)
    seen = view(stage, 1.0)
    assert (len(seen.engines), seen.workers_seen, seen.width) == (4, 2, 2)


def test_why_no_engine_speaks_is_told_apart(stage):
    stage.give(sighted(1.0, ready=1, workers=["77"]), 1.0)
    assert view(stage, 1.0).unknown == {"fpm": "no FPM has come from an engine of this role"}
    stage.engines("decode", 2.0, held(1000))
    assert view(stage, 2.0).unknown == {"fpm": "FPMs come from workers that the inventory does not list: 11"}
    assert "is 18 s old (limit 10 s)" in view(stage, 20.0).unknown["fpm"]


# without any inventory


def test_without_an_inventory_the_workers_that_speak_are_it(stage):
    stage.engines("decode", 1.0, {}, {}, {})
    stage.engines("decode", 11.0, {}, {}, {}, {})
    seen = view(stage, 11.0)
    assert (seen.current, seen.settling) == (4, False)
    assert seen.unknown["inventory"].endswith("counted by the engines that send FPMs")


def test_before_every_engine_had_time_to_speak_they_are_not_counted(stage):
    stage.engines("decode", 1.0, {})
    assert view(stage, 10.9).current is None
    assert view(stage, 10.9).unknown["inventory"].endswith("are counted for 10 s first")
    assert view(stage, 11.0).current == 1


def test_a_worker_that_falls_silent_still_counts_until_it_is_forgotten(stage):
    stage.engines("decode", 1.0, {}, {}, {})
    stage.engines("decode", 100.0, {})
    assert view(stage, 100.0).current == 3
    assert view(stage, 122.0).current == 1


def test_what_was_applied_is_believed_over_what_is_heard(stage):
    stage.planner.ledger.in_force, stage.planner.ledger.changed_at = {"decode": 4}, 0.0
    stage.engines("decode", 1.0, {}, {})
    stage.engines("decode", 11.0, {}, {})
    assert view(stage, 11.0).current == 4
    stage.engines("decode", 12.0, *[{}] * 6)
    seen = view(stage, 12.0)
    assert seen.inventory == RoleInventory(ready=4, draining=2)


def test_once_an_inventory_was_published_nothing_is_inferred(stage):
    stage.fleet(1.0, decode=2)
    stage.engines("decode", 100.0, {}, {}, {})
    assert view(stage, 100.0).current is None


def test_without_engines_either_the_count_is_unknown(stage):
    seen = view(stage, 1.0)
    assert (seen.current, seen.unknown["inventory"]) == (None, "no inventory has been published for this DGD")


def test_what_was_seen_is_reported_in_sums(stage):
    stage.give(
        replace(inventory(1.0, decode=2), roles={"decode": RoleInventory(ready=2, unschedulable=1, desired=3)}), 1.0
    )
    stage.engines("decode", 1.0, held(1000), held(2500))
    known = view(stage, 1.0).known()
    assert known["decode_kv_tokens"] == 3500.0
    assert (known["ready"], known["unschedulable"], known["desired"]) == (2.0, 1.0, 3.0)
    assert all(type(value) is float for value in known.values())
