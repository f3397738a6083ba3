"""The spine of the planner: records in, one decision at a time out."""

import math

import msgspec
import pytest
from msgspec.structs import replace
from world import DGD, Stage, ack, batch, fpm, held, inventory, prediction, proposal, queued, window

from headrace.schemas.base import Record
from headrace.schemas.codec import decode, encode
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Decision
from headrace.schemas.errors import RecordError
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal
from headrace.schemas.reasons import Outcome, Reason
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import stream_of
from headrace.schemas.tick_report import TickReport


def loaded(stage: Stage, at: float, workers: int = 2, queue: int = 4000) -> None:
    """Prefill workers with a queue that asks for one more."""
    stage.fleet(at, prefill=workers)
    stage.engines("prefill", at, *[queued(queue)] * workers)


@pytest.fixture
def stage() -> Stage:
    return Stage.load(mode="prefill").teach()


def test_a_tick_says_a_proposal_a_decision_and_a_report_in_that_order(stage):
    loaded(stage, 4.0)
    assert [type(r) for r in stage.tick().records] == [Proposal, Decision, TickReport]


def test_a_throughput_tick_says_its_prediction_first():
    stage = Stage.throughput(mode="decode").teach(170.0)
    stage.traffic(0, 180, 18_000)
    stage.fleet(179.0, decode=2)
    assert [type(r) for r in stage.tick().records] == [Prediction, Proposal, Decision, TickReport]


def test_a_tick_without_any_input_says_why_it_decides_nothing(stage):
    said = Stage.load(mode="disagg").tick()
    assert [type(r) for r in said.records] == [TickReport]
    for role in said.report.roles.values():
        assert (role.current, role.target, role.reason) == (None, None, Reason.NO_INVENTORY)
        assert set(role.unknown) == {"inventory", "fpm", "speed"}


def test_a_decision_names_its_causes(stage):
    loaded(stage, 4.0)
    said = stage.tick()
    decision = said.decision
    assert (decision.targets, decision.previous, decision.reasons) == (
        {"prefill": 3},
        {"prefill": 2},
        {"prefill": "scale_up"},
    )
    assert (decision.epoch, decision.decision_id, decision.issued_at, decision.expires_at) == (1, 0, 5.0, 1805.0)
    assert decision.causes.tick == said.report.tick == 1
    assert decision.causes.model_revision == {"prefill": stage.planner.models["prefill"].revision}
    assert decision.causes.proposals == [r.proposal_id for r in said.records if isinstance(r, Proposal)]


# one outstanding decision


def test_while_a_decision_is_outstanding_the_next_is_held():  # case T21, dynamo#9774
    stage = Stage.load(mode="disagg").teach()
    for at, worker_kv in ((4.0, 10_000), (9.0, 40_000)):
        stage.fleet(at, prefill=2, decode=2)
        stage.engines("prefill", at, queued(4000), queued(4000))
        stage.engines("decode", at, held(worker_kv), held(worker_kv))
        said = stage.tick()
    assert (said.targets, said.report.outstanding, said.report.last_outcome) == (None, 0, Outcome.OUTSTANDING)
    assert {r.load_reason for r in said.report.roles.values()} == {Reason.SCALING_IN_PROGRESS}
    assert said.role("decode").estimated["itl_ms"] > 10


def test_an_outside_wish_is_held_too_and_the_report_says_so(stage):
    loaded(stage, 4.0)
    stage.tick()
    stage.give(proposal("SET", prefill=9, priority=1), 6.0)
    loaded(stage, 9.0)
    said = stage.tick()
    assert (said.targets, said.role("prefill").target) == (None, 9)
    assert said.role("prefill").reason == Reason.SCALING_IN_PROGRESS
    assert "decision 0 is outstanding" in said.report.notes


def test_when_it_is_settled_and_stable_the_next_tick_decides(stage):  # case T21
    loaded(stage, 4.0)
    stage.apply(stage.tick(), 6.0)
    loaded(stage, 9.0, workers=3)
    said = stage.tick()
    assert (said.decision.decision_id, said.targets) == (1, {"prefill": 4})
    assert said.report.notes == ["decision 0 was applied by test"]


@pytest.mark.parametrize("status", ["rejected", "failed", "expired"])
def test_a_refusal_is_a_normal_outcome_and_the_planner_goes_on(stage, status):  # case T36, dynamo#8774
    loaded(stage, 4.0)
    stage.give(ack(stage.tick().decision, 6.0, status, message="no room"), 6.0)
    loaded(stage, 9.0)
    said = stage.tick()
    assert said.report.last_outcome == status
    assert said.targets is None  # the same is not asked for again at once
    assert said.report.notes[0] == f"decision 0 was {status} by test: no room"
    stage.engines("prefill", 14.0, queued(0), queued(0))
    stage.fleet(14.0, prefill=2)
    assert stage.tick().targets == {"prefill": 1}  # something else is


def test_what_was_rejected_is_asked_for_again_after_a_while(stage):
    loaded(stage, 4.0)
    stage.apply(stage.tick(), 6.0, "rejected")
    asked = []
    for i in range(2, 15):
        loaded(stage, 5.0 * i - 1)
        if stage.tick().decision is not None:
            asked.append(5.0 * i)
            break
    assert asked == [70.0]


def test_a_decision_without_an_ack_is_given_up_with_a_warning(stage):  # case T23, dynamo#8422
    loaded(stage, 4.0)
    stage.tick()
    loaded(stage, 1804.0)
    said = stage.tick(1804.9)
    assert (said.targets, said.report.outstanding) == (None, 0)
    loaded(stage, 1809.0)
    said = stage.tick(1810.0)
    assert (said.decision.decision_id, said.targets) == (1, {"prefill": 3})
    assert any("decision 0 had no ack within 1800 s of its issue" in note for note in said.report.notes)


# owners


def test_a_planner_that_a_newer_owner_has_overruled_only_watches(stage):  # case T30, wva#1044
    loaded(stage, 4.0)
    said = stage.tick()
    stage.apply(said, 6.0)
    stage.give(replace(said.decision, epoch=2, decision_id=1, advisory=True), 7.0)
    assert stage.planner.fenced
    loaded(stage, 9.0, workers=3)
    said = stage.tick()
    assert said.decision is None
    assert "a newer owner (epoch 2) decides for this DGD: this planner only watches" in said.report.notes


def test_a_new_owner_goes_on_with_the_ids_under_a_higher_epoch(stage):
    loaded(stage, 4.0)
    first = stage.tick().decision
    other = Stage.load(mode="prefill").teach()
    other.give(first, 6.0)
    other.planner.begin_epoch()
    other.give(ack(first, 7.0), 7.0)
    loaded(other, 9.0, workers=3)
    second = other.tick().decision
    assert (second.decision_id, second.epoch) == (1, 2)


def test_its_own_voice_from_the_bus_changes_nothing(stage):
    loaded(stage, 4.0)
    said = stage.tick()
    before = stage.planner.snapshot()
    for record in said.records:
        assert stage.give(record, 5.5) == []
    assert stage.planner.snapshot() == before


# records that are no input


def test_a_record_of_another_dgd_is_refused_and_harms_nothing(stage):
    before = stage.planner.snapshot()
    with pytest.raises(RecordError, match="'ml/other'") as refused:
        stage.give(batch("prefill", 1.0, fpm("1", 1), dgd="ml/other"), 1.0)
    assert refused.value.reason == "unknown_dgd"
    assert stage.planner.snapshot() == before


@pytest.mark.parametrize(
    "record",
    [
        PlannerState(dgd=DGD, epoch=1, taken_at=0.0, positions={}, crc32=0, state=b""),
        DeadLetter(
            dgd=DGD, reason="invalid", message="", reader="", stream="", position=None, at=0.0, data=b"", size=0
        ),
    ],
)
def test_a_record_that_is_no_input_is_refused(stage, record):
    with pytest.raises(RecordError) as refused:
        stage.give(record, 1.0)
    assert refused.value.reason == "not_an_input"


def test_an_fpm_without_a_worker_id_comes_back_as_a_dead_letter(stage):  # case T17
    letters = stage.give(batch("prefill", 1.0, fpm("", 1)), 1.0)
    assert [letter.reason for letter in letters] == ["empty_worker_id"]
    assert stage.tick().report.counters["fpm_bad"] == 1


@pytest.mark.parametrize(
    "record",
    [
        batch("prefill", 4.0, fpm("1", 9, wall=0.03, prefill=(1, 1000))),
        window(0.0, 4.0, 40, kv_hit_rate=0.3),
        inventory(4.0, prefill=3),
        prediction(5.0, 4.0),
        proposal("AT_LEAST", prefill=5),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_repeated_record_changes_nothing(stage, record):
    stage.give(record, 4.0)
    before = msgspec.json.decode(stage.planner.snapshot())
    stage.give(record, 4.0)
    after = msgspec.json.decode(stage.planner.snapshot())
    for kept in (before, after):
        kept["fpm"]["counters"]["duplicate"] = kept["traffic"]["duplicates"] = 0
    assert after == before


# time


def test_missed_ticks_run_once(stage):
    loaded(stage, 4.0)
    stage.tick()
    said = stage.tick(1003.0)
    assert (said.report.tick, said.report.due_at, said.report.at) == (200, 1000.0, 1003.0)
    assert stage.planner.next_tick_at == 1005.0


def test_a_tick_before_it_is_due_does_nothing(stage):
    loaded(stage, 4.0)
    stage.tick()
    before = stage.planner.snapshot()
    for at in (0.0, 5.0, 9.9):
        assert stage.planner.tick(at) == []
    assert stage.planner.snapshot() == before


def test_a_clock_that_goes_back_neither_breaks_nor_repeats_anything(stage):
    loaded(stage, 99.0)
    stage.tick(100.0)
    loaded(stage, 49.0, queue=0)
    assert stage.planner.tick(50.0) == []
    assert stage.planner.ledger.expire(50.0) is None
    loaded(stage, 104.0)
    assert stage.tick(105.0).report.tick == 21


def test_a_clock_that_was_once_ahead_by_years_does_not_silence_the_planner(stage):
    loaded(stage, 4.0)
    stage.tick(5.0)
    stage.tick(1e9)
    assert stage.planner.tick(10.0) == []
    assert stage.planner.next_tick_at == 15.0
    said = stage.tick(15.0)
    assert (said.report.tick, said.report.loops) == (3, ["load"])
    assert "the clock was set back: ticks go on from what it says now" in said.report.notes


def test_a_thousand_late_ticks_each_run_the_load_loop_once(stage):  # case T24, dynamo#11784
    for i in range(1, 1001):
        said = stage.tick(5.0 * i + 0.003)
        assert (said.report.loops, said.report.tick, said.report.at) == (["load"], i, 5.0 * i + 0.003)


def test_every_record_of_a_tick_bears_its_one_timestamp():  # case T24
    stage = Stage.throughput(mode="decode").teach(170.0)
    stage.traffic(0, 180, 18_000)
    stage.fleet(179.0, decode=2)
    made, own, decision, report = stage.tick(180.4).records
    assert {made.made_at, own.issued_at, decision.issued_at, report.at} == {180.4}


# what is said is whole


def values(thing: object) -> list[float]:
    if isinstance(thing, dict):
        return [v for part in thing.values() for v in values(part)]
    if isinstance(thing, list):
        return [v for part in thing for v in values(part)]
    return [thing] if isinstance(thing, float) else []


@pytest.mark.parametrize("mode", ["disagg", "agg"])
def test_everything_that_is_said_can_be_encoded_and_read_back(mode):
    stage = Stage.of(mode=mode, enable_load_scaling=True, load_predictor="constant").teach()
    for i in range(1, 80):
        at = 5.0 * i
        stage.traffic(at - 5, at, 20 * i if i % 7 else None)
        stage.fleet(at - 1, **dict.fromkeys(stage.roles, 2))
        for role in stage.roles:
            stage.engines(role, at - 1, {"queued_prefill": (i, 100 * i)} if role != "decode" else held(400 * i), {})
        for record in stage.tick().records:
            assert decode(stream_of(record), encode(record)) == record
            assert all(math.isfinite(v) for v in values(msgspec.to_builtins(record)))
        if stage.planner.ledger.outstanding:
            stage.give(ack(stage.planner.ledger.outstanding, at + 1), at + 1)


def test_a_report_says_for_every_role_what_was_known_estimated_proposed_merged_clamped_and_decided():
    stage = Stage.load(mode="disagg", max_gpu_budget=5).teach()
    stage.give(proposal("AT_LEAST", decode=3), 0.0)
    stage.fleet(4.0, prefill=2, decode=2)
    stage.engines("prefill", 4.0, queued(4000), queued(4000))
    stage.engines("decode", 4.0, held(10_000), held(10_000))
    report = stage.tick().report
    assert (report.mode, report.advisory, report.loops, report.config_revision) == ("disagg", False, ["load"], 0)
    prefill, decode_role = report.roles["prefill"], report.roles["decode"]
    assert prefill.known["queued_prefill_tokens"] == 8000.0
    assert prefill.estimated["ttft_ms"] == pytest.approx(130.4, rel=1e-2)
    assert [(p.source, p.kind, p.replicas, p.used) for p in prefill.proposed] == [("headrace.load", "SET", 3, True)]
    assert (prefill.current, prefill.merged, prefill.target, prefill.load_reason) == (2, 3, 2, "scale_up")
    assert [(c.rule, c.before, c.after) for c in prefill.clamps] == [("gpu_budget_ceiling", 3, 2)]
    assert (prefill.throughput_reason, prefill.reason) == ("disabled", "gpu_budget_ceiling")
    assert (decode_role.current, decode_role.merged, decode_role.target) == (2, 3, 3)
    assert [(p.source, p.kind, p.used) for p in decode_role.proposed] == [("ops", "AT_LEAST", True)]
    assert report.unknown["load"] == "no traffic window has come"
    assert (report.decision_id, report.outstanding, report.last_outcome) == (0, 0, "outstanding")


def test_fpms_of_roles_that_are_not_planned_are_named(stage):
    for role in ("encode", "agg", "encode"):
        stage.give(batch(role, 1.0, fpm("1", 1)), 1.0)
    assert stage.tick().report.unknown["roles"] == (
        "FPMs came for roles that mode 'prefill' does not plan: agg, encode"
    )


def test_notes_appear_once(stage):
    stage.planner.notes.append("the tail could not be read")
    assert stage.tick().report.notes == ["the tail could not be read"]
    assert stage.tick().report.notes == []


def test_foreign_text_in_notes_is_cut_and_their_number_bounded(stage):
    for i in range(100):
        stage.give(proposal("SET", until=1.0, proposal_id=str(i), source="x" * 253, prefill=1), 2.0)
    stage.give(proposal("SET", until=1e6, **{f"role{i}": 1 for i in range(10_000)}), 2.0)
    notes = stage.tick().report.notes
    assert len(notes) == 32
    assert max(map(len, notes)) <= 500


def test_memory_does_not_grow_over_an_hour_with_a_hundred_workers():
    stage = Stage.of(
        mode="agg", enable_load_scaling=True, load_predictor="constant", advisory=True, max_gpu_budget=-1
    ).teach()
    sizes = []
    for i in range(1, 721):
        at = 5.0 * i
        stage.traffic(at - 5, at, 500 + i % 100)
        stage.fleet(at - 1, agg=100)
        load = {"wall": 0.01 + i % 9 / 1000, "prefill": (1, 100 + i), "decode": (1 + i % 30, 900 * (1 + i % 30))}
        stage.engines("agg", at - 1, *[load] * 100)
        stage.give(prediction(100.0, at, source=f"s{i % 5}", expires_at=at + 300), at)
        stage.give(proposal("AT_MOST", at=at, until=at + 60, proposal_id=str(i), agg=500), at)
        stage.tick()
        if i % 180 == 0:
            state = msgspec.json.decode(stage.planner.snapshot())
            del state["models"]["agg"]["waiting"]  # up to a block of rows, then none
            sizes.append(len(msgspec.json.encode(state)))
    assert sizes[3] < 1.05 * sizes[1]  # after the first half hour every table that fills up is full
    assert max(sizes) < 100 * 300


def test_the_seam_is_what_the_architecture_says(stage):
    assert stage.planner.handle(inventory(1.0, prefill=1), now=1.0) == []
    assert isinstance(stage.planner.tick(now=5.0)[-1], Record)
    assert stage.planner.next_tick_at == 10.0
