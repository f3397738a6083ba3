"""From opinions to targets: outside proposals, constraints, drift. In each, a role is seen by a whole planner."""

import pytest
from world import Said, Stage, held, proposal, queued

from headrace.schemas.reasons import Reason


def steady(**config: object) -> Stage:
    """Two prefill and two decode workers with a load that asks for no change."""
    return Stage.load(**config).teach()


def tick(stage: Stage, queue: int = 2000, kv: int = 10_000, at: float | None = None, **counts: int) -> Said:
    at = stage.planner.next_tick_at if at is None else at
    counts = counts or {"prefill": 2, "decode": 2}
    stage.fleet(at - 1, **counts)
    stage.engines("prefill", at - 1, *[queued(queue)] * counts.get("prefill", 0))
    stage.engines("decode", at - 1, *[held(kv)] * counts.get("decode", 0))
    return stage.tick(at)


# The table of reference-semantics 6.9, disaggregated: ttft 100, itl 10; floors come from the throughput loop.


@pytest.mark.parametrize(
    ("prefill", "decode", "targets", "reasons"),
    [
        (0, 5000, (1, 1), (Reason.SCALE_DOWN, Reason.SCALE_DOWN)),
        (4000, 5000, (3, 1), (Reason.SCALE_UP, Reason.SCALE_DOWN)),
        (4000, 10_000, (3, 2), (Reason.SCALE_UP, Reason.SCALE_DOWN_REFUSED_CONSOLIDATION)),
        (2000, 10_000, None, (Reason.SCALE_DOWN_REFUSED_CONSOLIDATION, Reason.SCALE_DOWN_REFUSED_CONSOLIDATION)),
    ],
)
def test_both_roles_are_decided_at_once(prefill, decode, targets, reasons):
    said = tick(steady(), prefill, decode)
    assert said.targets == (None if targets is None else dict(zip(("prefill", "decode"), targets, strict=True)))
    assert tuple(said.role(role).reason for role in ("prefill", "decode")) == reasons


@pytest.mark.parametrize(
    ("load", "floors", "targets", "reasons"),
    [
        ((2000, 10_000), (4, 4), (4, 4), (Reason.SCALE_UP, Reason.SCALE_UP)),
        ((0, 5000), (2, 2), None, (Reason.SCALE_DOWN_CAPPED_BY_THROUGHPUT,) * 2),
        ((0, 5000), (2, 1), (2, 1), (Reason.SCALE_DOWN_CAPPED_BY_THROUGHPUT, Reason.SCALE_DOWN)),
    ],
)
def test_the_load_loop_stays_above_the_floors(load, floors, targets, reasons):
    stage = steady(enable_throughput_scaling=True)
    for role, floor in zip(("prefill", "decode"), floors, strict=True):
        stage.planner._memory.throughput.floors[role] = (floor, 1e9)
    said = tick(stage, *load)
    assert said.targets == (None if targets is None else dict(zip(("prefill", "decode"), targets, strict=True)))
    assert tuple(said.role(role).reason for role in ("prefill", "decode")) == reasons
    assert tuple(said.role(role).floor for role in ("prefill", "decode")) == floors


def test_a_role_whose_engines_do_not_speak_stays_while_the_other_moves():
    # The reference gives (1, 2) and calls the silent side no_change.
    stage = steady()
    stage.fleet(4.0, prefill=2, decode=2)
    stage.engines("prefill", 4.0, {}, {})
    said = stage.tick()
    assert said.targets == {"prefill": 1, "decode": 2}
    assert (said.role("prefill").reason, said.role("decode").reason) == (Reason.SCALE_DOWN, Reason.NO_FPM_DATA)


@pytest.mark.parametrize("mode", ["prefill", "decode", "agg"])
def test_in_single_modes_a_floor_lifts_a_load_loop_that_holds(mode):  # reference weak spot 1
    stage = Stage.load(mode=mode, enable_throughput_scaling=True).teach()
    stage.planner._memory.throughput.floors[mode] = (5, 1e9)
    stage.fleet(4.0, **{mode: 2})
    stage.engines(mode, 4.0, {}, {"decode": (9, 9000), "queued_prefill": (2, 2000)})
    said = stage.tick()
    assert (said.targets, said.role(mode).reason) == ({mode: 5}, Reason.SCALE_UP)


def test_a_floor_is_kept_without_any_fpm():  # reference weak spot 9
    stage = Stage.load(mode="decode", enable_throughput_scaling=True)
    stage.planner._memory.throughput.floors["decode"] = (5, 1e9)
    stage.fleet(4.0, decode=2)
    assert stage.tick().targets == {"decode": 5}


def test_the_least_count_of_a_role_is_kept():
    said = tick(steady(min_endpoint=3), 0, 5000)
    assert said.targets == {"prefill": 3, "decode": 3}
    assert tick(steady(prefill_min_endpoint=2), 0, 5000).targets == {"prefill": 2, "decode": 1}


def test_a_budget_shrinks_what_runs_over_it():
    said = tick(steady(max_gpu_budget=3))
    assert said.targets == {"prefill": 1, "decode": 2}
    assert said.role("prefill").reason == Reason.GPU_BUDGET_CEILING


def test_growth_that_the_budget_stops_is_named_so():  # reference weak spot 12: there it says no_change
    said = tick(steady(max_gpu_budget=4), 4000, 40_000)
    assert said.targets is None
    assert {r.reason for r in said.report.roles.values()} == {Reason.GPU_BUDGET_CEILING}
    assert said.role("prefill").load_reason == Reason.SCALE_UP
    assert [(c.rule, c.before, c.after) for c in said.role("prefill").clamps] == [(Reason.GPU_BUDGET_CEILING, 3, 2)]


def test_an_unknown_gpu_shape_stops_growth_and_alerts():  # case T34, dynamo#11220
    stage = steady(max_gpu_budget=8)
    stage.fleet(4.0, gpus=None, prefill=2, decode=2)
    stage.engines("prefill", 4.0, queued(4000), queued(4000))
    stage.engines("decode", 4.0, held(5000), held(5000))
    said = stage.tick()
    assert said.targets == {"prefill": 2, "decode": 1}
    assert said.role("prefill").reason == Reason.GPU_SHAPE_UNKNOWN
    assert any("the GPUs of a replica are unknown" in note for note in said.report.notes)


def test_the_ceiling_wins_over_the_floor_and_says_so():  # case T31, dynamo#13144
    stage = Stage.load(mode="decode", max_gpu_budget=5, min_gpu_budget=5, decode_engine_num_gpu=2).teach()
    stage.fleet(4.0, decode=1)
    stage.engines("decode", 4.0, held(10_000))
    said = stage.tick()
    assert said.targets == {"decode": 2}
    assert any("min_gpu_budget is missed by 1 GPUs" in note for note in said.report.notes)


def test_a_budget_below_the_least_fleet_lets_nothing_grow_and_says_so():
    stage = Stage.load(mode="decode", max_gpu_budget=3).teach()
    stage.fleet(4.0, gpus=4, decode=1)
    stage.engines("decode", 4.0, held(40_000))
    said = stage.tick()
    assert (said.targets, said.role("decode").reason) == (None, Reason.GPU_BUDGET_CEILING)
    assert "the least fleet is 1 GPUs above max_gpu_budget: nothing may grow" in said.report.notes


def test_a_role_whose_count_is_unknown_holds_the_others():
    stage = steady(max_gpu_budget=8)
    stage.fleet(4.0, decode=2)
    stage.engines("decode", 4.0, held(40_000), held(40_000))
    said = stage.tick()
    assert (said.targets, said.role("decode").reason) == (None, Reason.NO_INVENTORY)
    assert said.role("decode").load_reason == Reason.SCALE_UP


# opinions from outside


def test_an_outside_floor_lifts():
    stage = steady()
    stage.give(proposal("AT_LEAST", decode=4), 0.0)
    said = tick(stage)
    assert said.targets == {"prefill": 2, "decode": 4}
    assert said.role("decode").reason == Reason.CLAMPED_TO_FLOOR
    assert [(c.rule, c.before, c.after) for c in said.role("decode").clamps] == [(Reason.CLAMPED_TO_FLOOR, 2, 4)]
    assert said.role("decode").merged == 4


def test_an_outside_ceiling_bounds_the_loops():
    stage = steady()
    stage.give(proposal("AT_MOST", prefill=2), 0.0)
    said = tick(stage, 4000)
    assert (said.targets, said.role("prefill").reason) == (None, Reason.CLAMPED_TO_CEILING)


def test_an_outside_set_of_a_smaller_priority_number_overrides():
    stage = steady()
    stage.give(proposal("SET", decode=7, priority=5), 0.0)
    said = tick(stage, 2000, 40_000)
    assert (said.targets, said.role("decode").reason) == ({"prefill": 2, "decode": 7}, Reason.OVERRIDE_BY_USER)
    assert said.decision.causes.proposals == ["p"]


def test_an_outside_set_of_a_larger_priority_number_counts_where_the_loops_hold():
    stage = steady()
    stage.give(proposal("SET", prefill=7, decode=7), 0.0)
    assert tick(stage, 4000, 10_000).targets == {"prefill": 3, "decode": 7}


def test_a_reject_stops_everything_while_it_lasts():
    stage = steady()
    stage.give(proposal("REJECT", until=9.0, reason="maintenance"), 0.0)
    said = tick(stage, 4000)
    assert said.targets is None
    assert {r.reason for r in said.report.roles.values()} == {Reason.REJECTED_BY_USER}
    assert "ops rejects scaling: maintenance" in said.report.notes
    assert [p.used for p in said.role("decode").proposed] == [True]
    assert tick(stage, 4000).targets == {"prefill": 3, "decode": 2}


def test_a_proposal_that_has_ended_counts_no_more():
    stage = steady()
    stage.give(proposal("AT_LEAST", until=5.0, decode=4), 0.0)
    assert tick(stage).targets is None


def test_proposals_cannot_pass_the_budget_or_the_least_count():
    stage = steady(max_gpu_budget=8, min_endpoint=2)
    stage.give(proposal("SET", decode=500, prefill=0, priority=1), 0.0)
    said = tick(stage)
    assert said.targets == {"prefill": 2, "decode": 6}
    assert [c.rule for c in said.role("prefill").clamps] == [Reason.MIN_ENDPOINT]


def test_every_opinion_is_reported_and_which_were_used():
    stage = steady()
    for i, (kind, n, priority) in enumerate((("SET", 9, 50), ("AT_LEAST", 1, 100), ("AT_MOST", 4, 100))):
        stage.give(proposal(kind, proposal_id=str(i), decode=n, priority=priority), 0.0)
    proposed = tick(stage).role("decode").proposed
    assert [(p.kind, p.replicas, p.used) for p in proposed] == [
        ("SET", 9, True),
        ("AT_LEAST", 1, False),
        ("AT_MOST", 4, True),
    ]


# drift


def applied(stage: Stage) -> Stage:
    """One decode worker was decided and carried out."""
    stage.apply(tick(stage, 2000, 5000), 6.0)
    return stage


def test_a_count_changed_by_hand_is_reported_and_put_right():  # case T26, dynamo#4420
    stage = applied(steady())
    assert tick(stage, 2000, 9000, at=70.0, prefill=2, decode=1).targets is None
    said = tick(stage, 2000, 9900, at=80.0, prefill=2, decode=2)
    assert said.targets == {"prefill": 2, "decode": 1}
    assert said.role("decode").reason == Reason.DRIFT
    assert (said.role("decode").current, said.role("decode").known["in_force"]) == (2, 1.0)


def test_a_drift_is_not_put_right_again_at_once():
    stage = applied(steady())
    for at in (10.0, 20.0, 60.0):
        said = tick(stage, 2000, 9900, at=at, prefill=2, decode=2)
        assert said.targets is None
        assert "asked for the same and was applied" in said.report.notes[-1]
    assert tick(stage, 2000, 9900, at=70.0, prefill=2, decode=2).targets == {"prefill": 2, "decode": 1}


def test_with_on_drift_adopt_what_runs_is_what_counts():
    stage = applied(steady(on_drift="adopt"))
    said = tick(stage, 2000, 9900, at=80.0, prefill=2, decode=2)
    assert (said.targets, said.role("decode").target) == (None, 2)


def test_an_inventory_older_than_the_ack_is_no_drift():
    stage = steady()
    stage.apply(tick(stage, 2000, 5000), 9.5)
    said = tick(stage, 2000, 9900, prefill=2, decode=2)  # seen at 9.0
    assert said.targets is None
    assert said.role("decode").current == 1


def test_what_was_decided_is_the_base_of_what_follows():  # case T27, ray#18925
    stage = Stage.load(mode="decode").teach()
    stage.give(proposal("SET", decode=5, until=6.0, priority=1), 0.0)
    said = tick(stage, decode=1)
    assert said.targets == {"decode": 5}
    for at in (10.0, 15.0, 100.0, 1800.0):  # one still runs, and nothing else is asked for
        said = tick(stage, at=at, decode=1)
        assert (said.targets, said.report.outstanding) == (None, 0)
