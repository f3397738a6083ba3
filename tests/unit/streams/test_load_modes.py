"""The load loop in every mode and for every target: up, down and neither, each with its reason."""

from typing import Any

import pytest
from world import Load, Stage, held, queued

TARGETS = ("sla", "throughput", "latency", "load")
ROLES = {"prefill": ("prefill",), "decode": ("decode",), "agg": ("agg",), "disagg": ("prefill", "decode")}
THRESHOLDS = {
    "prefill_scale_up_queue_tokens": 4000,
    "prefill_scale_down_queue_tokens": 500,
    "decode_scale_up_kv_rate": 60,
    "decode_scale_down_kv_rate": 10,
}

# (role, target) -> what each of two engines has in front of it: to grow, to stay, to shrink
LOADS: dict[tuple[str, str], tuple[Load, Load, Load]] = {
    ("prefill", "sla"): (queued(4000), queued(2000), queued(0)),
    ("prefill", "throughput"): (queued(8192), queued(1000), queued(0)),
    ("prefill", "latency"): (queued(820), queued(100), queued(0)),
    ("prefill", "load"): (queued(4000), queued(1000), queued(400)),
    ("decode", "sla"): (held(40_000), held(10_000), held(5000)),
    ("decode", "throughput"): (held(100_001), held(60_000), held(30_000)),
    ("decode", "latency"): (held(40_001), held(20_000), held(5000)),
    ("decode", "load"): (held(60_000), held(20_000), held(10_000)),
    ("agg", "sla"): (
        {"queued_prefill": (8, 8000), "decode": (5, 5000)},
        {"queued_prefill": (2, 1500), "decode": (5, 5000)},
        {},
    ),
    ("agg", "throughput"): ({"queued_prefill": (8, 60_000), "decode": (5, 40_001)}, held(60_000), held(30_000)),
    ("agg", "latency"): ({"queued_prefill": (8, 20_000), "decode": (5, 20_001)}, held(20_000), held(5000)),
    ("agg", "load"): ({"queued_prefill": (8, 30_000), "decode": (5, 30_000)}, held(20_000), held(10_000)),
}
UP, STAY, DOWN = 0, 1, 2
HELD = {"no_change", "scale_down_refused_consolidation"}


def said_by(mode: str, target: str, which: int, **config: Any) -> Any:
    thresholds = THRESHOLDS if target == "load" else {}
    sla = {"itl_ms": 35.0} if mode == "agg" else {}
    stage = Stage.load(mode=mode, optimization_target=target, **thresholds | sla | config)
    if target == "sla":
        stage.teach()
    stage.fleet(4.0, **dict.fromkeys(ROLES[mode], 2))
    for role in ROLES[mode]:
        stage.engines(role, 4.0, *[LOADS[role, target][which]] * 2)
    return stage.tick()


every_mode_and_target = pytest.mark.parametrize(("mode", "target"), [(m, t) for m in ROLES for t in TARGETS])


@every_mode_and_target
def test_a_load_above_the_target_adds_one_worker_of_every_role(mode: str, target: str) -> None:
    said = said_by(mode, target, UP)
    assert said.targets == dict.fromkeys(ROLES[mode], 3)
    assert {said.role(role).load_reason for role in ROLES[mode]} == {"scale_up"}
    assert {said.role(role).reason for role in ROLES[mode]} == {"scale_up"}


@every_mode_and_target
def test_a_load_that_one_worker_could_take_removes_the_other(mode: str, target: str) -> None:
    said = said_by(mode, target, DOWN)
    assert said.targets == dict.fromkeys(ROLES[mode], 1)
    assert {said.role(role).load_reason for role in ROLES[mode]} == {"scale_down"}


@every_mode_and_target
def test_a_load_between_the_two_changes_nothing(mode: str, target: str) -> None:
    said = said_by(mode, target, STAY)
    assert said.targets is None
    assert {said.role(role).load_reason for role in ROLES[mode]} <= HELD


@every_mode_and_target
def test_the_least_count_of_a_role_stops_a_reduction(mode: str, target: str) -> None:
    assert said_by(mode, target, DOWN, min_endpoint=2).targets is None


@pytest.mark.parametrize("target", TARGETS)
def test_each_role_has_its_own_least_count(target: str) -> None:
    assert said_by("disagg", target, DOWN, prefill_min_endpoint=2).targets == {"prefill": 2, "decode": 1}
    assert said_by("disagg", target, DOWN, decode_min_endpoint=3).targets == {"prefill": 1, "decode": 3}


@every_mode_and_target
def test_a_ceiling_stops_growth_and_gives_its_reason(mode: str, target: str) -> None:
    said = said_by(mode, target, UP, max_gpu_budget=2 * len(ROLES[mode]))
    assert said.targets is None
    assert {said.role(role).reason for role in ROLES[mode]} == {"gpu_budget_ceiling"}
