"""Reported failures of autoscalers, played against sized fleets: the default policy against an SLA."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from world import DGD, LIMITS, Said, Stage, held, inventory

from headrace.schemas.inventory import Capabilities, RoleInventory
from headrace.schemas.reasons import Reason

SLA = {"ttft_ms": 300, "itl_ms": 20}


def stage(**config: Any) -> Stage:
    return Stage.load(**{**SLA, "capacity_policy": "queue_aware", **config}).teach()


def hour(
    s: Stage, rate: Callable[[float], float], fleet: dict[str, int], until: float = 1200.0, obey: bool = True
) -> list[Said]:
    """Ticks up to `until`; every decision is carried out at once, if anybody obeys."""
    said, counts = [], dict(fleet)
    while s.planner.next_tick_at <= until:
        at = s.planner.next_tick_at
        s.traffic(at - 5, at, round(5 * rate(at)))
        s.engines("prefill", at, *[{}] * counts["prefill"])
        s.engines("decode", at, *[held(1000)] * counts["decode"])
        s.fleet(at, **counts)
        said.append(s.tick())
        if said[-1].decision is not None and obey:
            counts = dict(said[-1].decision.targets)
            s.apply(said[-1], at)
    return said


def test_a_constant_load_never_moves_the_count_twice():  # case T20, dynamo#9294
    for rate in (1.0, 20.0, 50.0, 90.0):
        moves = [x.targets for x in hour(stage(), lambda _, r=rate: r, {"prefill": 2, "decode": 2}) if x.targets]
        assert len(moves) <= 2  # up or down to where it belongs; the first look may know less than the later ones


def test_noise_around_a_constant_load_never_moves_the_count():  # case T29, wva#1427
    def noisy(at: float) -> float:
        return 60.0 * (1.0 + 0.05 * (-1) ** int(at // 15))

    said = hour(stage(), noisy, {"prefill": 3, "decode": 3})
    assert not [x.targets for x in said[60:] if x.targets]


def test_what_was_asked_for_is_kept_while_it_starts():  # case T27, ray#18925
    s = stage()
    first = next(x for x in hour(s, lambda _: 100.0, {"prefill": 1, "decode": 1}, until=10.0, obey=False) if x.targets)
    assert first.targets is not None
    for i in range(3, 20):  # nothing has come up yet, and the burst is over
        at = 5.0 * i
        s.traffic(at - 5, at, 5)
        s.engines("prefill", at, {})
        s.engines("decode", at, {})
        s.fleet(at, prefill=1, decode=1, prefill_starting=first.targets["prefill"] - 1)
        assert s.tick().targets is None


def test_a_cooldown_holds_from_the_start():  # keda#5008
    said = hour(stage(scale_down_window_seconds=300), lambda _: 1.0, {"prefill": 6, "decode": 6}, until=295.0)
    assert not [x.targets for x in said if x.targets]
    assert said[-1].role("prefill").reason == Reason.STABILISING


def test_replicas_that_never_come_up_do_not_keep_others_from_going():  # wva#769, dynamo#14251
    s = stage()
    for i in range(1, 40):
        at = 5.0 * i
        s.traffic(at - 5, at, 5)
        s.engines("prefill", at, {}, {})
        s.engines("decode", at, {}, {})
        s.fleet(at, prefill=2, decode=2, prefill_starting=6)
        said = s.tick()
        if said.targets:
            break
    assert said.targets == {"prefill": 1, "decode": 1}


def test_it_takes_one_step_to_what_is_needed_and_waits_for_no_other():  # wva#1248
    first = next(x for x in hour(stage(), lambda _: 180.0, {"prefill": 1, "decode": 1}, until=10.0) if x.targets)
    assert first.targets is not None
    assert first.targets["prefill"] >= 6  # 180 requests/s x 30 ms are 5.4 engines' worth


def test_a_worker_that_is_not_ready_does_not_stop_the_others():  # aibrix#617
    s = stage()
    s.traffic(0.0, 5.0, 500)
    s.engines("prefill", 5.0, {})
    s.engines("decode", 5.0, {})
    s.fleet(5.0, prefill=1, decode=1, prefill_starting=1)
    said = s.tick()
    assert said.targets is not None
    assert said.targets["prefill"] > 2


def test_deployments_share_no_state():  # aibrix#436
    alone, busy, beside = stage(), stage(), stage()
    expected = [x.records for x in hour(alone, lambda _: 20.0, {"prefill": 2, "decode": 2}, until=300.0)]
    hour(busy, lambda _: 300.0, {"prefill": 2, "decode": 2}, until=300.0)
    assert [x.records for x in hour(beside, lambda _: 20.0, {"prefill": 2, "decode": 2}, until=300.0)] == expected


def test_each_role_grows_by_what_it_does_itself():  # wva#1213
    prompts, answers = stage(), stage()
    for s, isl, osl in ((prompts, 4000.0, 2.0), (answers, 10.0, 2000.0)):
        s.traffic(0.0, 5.0, 100, isl=isl, osl=osl)
        s.engines("prefill", 5.0, {})
        s.engines("decode", 5.0, {})
        s.fleet(5.0, prefill=1, decode=1)
    a, b = prompts.tick().targets, answers.tick().targets
    assert a is not None
    assert b is not None
    assert (a["prefill"] > 1, a["decode"]) == (True, 1)
    assert (b["prefill"], b["decode"] > 1) == (1, True)


def test_limits_that_engines_name_late_count_from_then_on():  # dynamo#8702
    def wanted(capabilities: Capabilities | None) -> float:
        s = stage(itl_ms=1000)
        s.traffic(0.0, 5.0, 100)
        s.engines("prefill", 5.0, {})
        s.engines("decode", 5.0, {})
        role = RoleInventory(ready=1, gpus_per_replica=1, capabilities=capabilities)
        s.give(replace(inventory(5.0), dgd=DGD, roles={"prefill": role, "decode": role}), 5.0)
        return s.tick().role("decode").known["wanted"]

    assert wanted(None) == 1.0  # unknown: the default is generous
    assert wanted(replace(LIMITS, max_kv_tokens=30_000)) > 1.0
