"""Replicas of several nodes, and data-parallel attention: what a replica costs, and when all of it speaks."""

from typing import Any

import pytest
from world import DGD, LIMITS, Said, Stage, batch, fpm, held

from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory


def sight(stage: Stage, at: float, ready: int, **more: Any) -> None:
    fields = {"capabilities": LIMITS} | more
    role = RoleInventory(ready=ready, **fields)
    stage.give(WorkerInventory(dgd=DGD, source="test", observed_at=at, roles={"decode": role}), at)


def stage(**config: Any) -> Stage:
    return Stage.load(mode="decode", **config).teach()


def grown(stage: Stage, at: float, ready: int, **shape: Any) -> Said:
    """A tick in which every engine is over its target."""
    sight(stage, at - 1, ready, **shape)
    stage.engines("decode", at - 1, *[held(60_000)] * (ready * shape.get("workers_per_replica", 1)))
    return stage.tick(at)


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ({"gpus_per_node": 8, "nodes_per_replica": 1}, 3),
        ({"gpus_per_node": 8, "nodes_per_replica": 2}, 2),  # the third would make 48 GPUs
        ({"gpus_per_replica": 16, "nodes_per_replica": 2}, 2),
        # case T35, dynamo#8576: eight ranks share the eight GPUs of a replica, which are not 64
        ({"gpus_per_replica": 8, "capabilities": Capabilities(max_kv_tokens=100_000, dp_size=8)}, 3),
    ],
)
def test_a_ceiling_counts_nodes_and_not_ranks(shape, target):
    said = grown(stage(max_gpu_budget=32), 5.0, 2, **shape)
    assert said.role("decode").target == target


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"gpus_per_node": 8}, "nobody says how many nodes"),
        ({"gpus_per_replica": 8, "gpus_per_node": 8, "nodes_per_replica": 2}, "8 GPUs per replica are not 2 nodes"),
    ],
)
def test_an_unknown_shape_stops_growth_and_says_why(shape, why):  # case T34, dynamo#11220, wva#995
    said = grown(stage(max_gpu_budget=32), 5.0, 2, **shape)
    role = said.role("decode")
    assert (role.target, role.reason) == (2, "gpu_shape_unknown")
    assert why in role.unknown["gpus"]
    assert any("a budget cannot be kept" in note for note in said.report.notes)


def test_a_shape_that_was_said_once_is_kept():
    s = stage(max_gpu_budget=32)
    sight(s, 1.0, 2, gpus_per_node=8, nodes_per_replica=2)
    said = grown(s, 5.0, 2)
    assert said.role("decode").known["gpus_per_replica"] == 16


def test_the_inventory_and_the_configuration_may_differ_and_the_ceiling_holds():
    said = grown(stage(max_gpu_budget=32, decode_engine_num_gpu=1), 5.0, 2, gpus_per_replica=16)
    assert said.role("decode").target == 2
    assert "16: the larger number counts" in said.role("decode").unknown["gpus"]


# a replica with a worker on each of its nodes


def test_the_workers_of_one_replica_are_no_mismatch():
    said = grown(stage(), 5.0, 2, workers_per_replica=2)
    assert said.role("decode").reason == "scale_up"
    assert said.targets == {"decode": 3}


def test_a_silent_node_stops_a_reduction():
    s = stage()
    sight(s, 4.0, 2, workers_per_replica=2)
    s.engines("decode", 4.0, *[held(1000)] * 3)
    assert s.tick(5.0).role("decode").reason == "worker_count_mismatch"
    sight(s, 9.0, 2, workers_per_replica=2)
    s.engines("decode", 9.0, *[held(1000)] * 4)
    assert s.tick(10.0).targets == {"decode": 1}


def test_more_workers_than_the_replicas_have_are_a_mismatch():
    s = stage()
    sight(s, 4.0, 2, workers_per_replica=2)
    s.engines("decode", 4.0, *[held(60_000)] * 5)
    assert s.tick(5.0).role("decode").reason == "worker_count_mismatch"


@pytest.mark.parametrize(("workers", "ranks", "target"), [(1, 1, 5), (2, 1, 3), (1, 2, 3), (2, 2, 2)])
def test_a_replica_serves_with_the_ranks_of_all_its_workers(workers, ranks, target):
    s = Stage.throughput(mode="decode").teach()
    sight(s, 179.0, 2, workers_per_replica=workers)
    for worker in range(2 * workers):
        for rank in range(ranks):
            s.give(batch("decode", 179.0, fpm(str(11 + worker), 1, rank=rank)), 179.0)
    s.traffic(0.0, 180.0, 18_000)
    assert s.tick(180.0).role("decode").target == target


def test_replicas_without_room_are_named_in_the_report():  # dynamo#14251
    s = stage()
    sight(s, 4.0, 2, starting=3, unschedulable=2)
    said = s.tick(5.0)
    assert "2 of 3 starting decode replicas cannot be scheduled: no node has room for them" in said.report.notes
