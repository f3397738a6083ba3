"""What holds for a planner whatever happens to its deployment."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moves import Move, Player, histories
from msgspec.structs import replace
from world import DGD, taught

from headrace.schemas.base import Record
from headrace.schemas.codec import decode, encode
from headrace.schemas.config import planner_config
from headrace.schemas.decision import Decision
from headrace.schemas.streams import stream_of
from headrace.schemas.tick_report import TickReport
from headrace.streams.planner import Planner

History = tuple[dict[str, Any], list[Move]]


def player(config: dict[str, Any], **more: Any) -> Player:
    planner = Planner(planner_config(config), DGD, start=100.0)
    planner.begin_epoch()
    for role in planner.models:
        planner.models[role] = taught(role)
    return Player(planner, **more)


def said(history: History, **more: Any) -> list[Record]:
    config, moves = history
    one = player(config, **more)
    return [record for move in moves for record in one.play(move)]


@given(histories())
@settings(max_examples=80)
def test_the_same_records_give_the_same_bytes(history: History) -> None:
    config, moves = history
    one, other = player(config), player(config)
    assert [one.bytes(move) for move in moves] == [other.bytes(move) for move in moves]


@given(histories(), st.data())
@settings(max_examples=80)
def test_a_planner_restored_at_any_moment_says_the_same_bytes(history: History, data: st.DataObject) -> None:
    config, moves = history
    one, other = player(config), player(config)
    for move in moves:
        if data.draw(st.booleans()):
            other.planner = Planner.restore(other.planner.snapshot())
        assert one.bytes(move) == other.bytes(move)
    assert one.planner.snapshot() == other.planner.snapshot()


@given(histories(), st.data())
@settings(max_examples=60)
def test_ids_rise_by_one_over_restarts_and_new_owners(history: History, data: st.DataObject) -> None:
    config, moves = history
    one, decisions, epoch = player(config), [], 1
    for move in moves:
        if (
            data.draw(st.integers(0, 5)) == 0
        ):  # the next owner has the snapshot and reads the last decision from the log
            one.planner = Planner.restore(one.planner.snapshot(), planner_config(config))
            if decisions:
                one.planner.ledger.adopt(decisions[-1])
            epoch = one.planner.begin_epoch()
        found = [r for r in one.play(move) if isinstance(r, Decision)]
        assert all(d.epoch == epoch for d in found)
        decisions += found
    assert [d.decision_id for d in decisions] == list(range(len(decisions)))
    assert [d.epoch for d in decisions] == sorted(d.epoch for d in decisions)


@given(histories(revise=False))
@settings(max_examples=80)
def test_there_is_one_outstanding_decision_at_most(history: History) -> None:
    config, moves = history
    one = player(config)
    for move in moves:
        before = one.planner.ledger.outstanding
        issued_at = None if before is None else before.issued_at
        for record in one.play(move):
            if isinstance(record, Decision) and issued_at is not None:
                assert one.now >= issued_at + config["ack_timeout_seconds"]


@given(histories())
@settings(max_examples=80)
def test_a_repeated_record_makes_no_difference(history: History) -> None:
    def seen(records: list[Record]) -> list[Record]:
        return [replace(r, counters={}, notes=[]) if isinstance(r, TickReport) else r for r in records]

    assert seen(said(history)) == seen(said(history, repeats=True))


@given(histories(revise=False))
@settings(max_examples=120)
def test_targets_keep_the_ceiling_and_the_least_counts(history: History) -> None:
    config, moves = history
    one = player(config)
    least, ceiling = config["min_endpoint"], config["max_gpu_budget"]
    for move in moves:
        records = one.play(move)
        for decision in (r for r in records if isinstance(r, Decision)):
            report = records[-1]
            assert isinstance(report, TickReport)
            shapes = {role: r.known.get("gpus_per_replica") for role, r in report.roles.items()}
            before = decision.previous
            if ceiling >= 0 and None not in shapes.values():
                total = sum(n * shapes[role] for role, n in decision.targets.items())
                assert total <= max(ceiling, sum(n * shapes[role] for role, n in before.items()))
            for role, n in decision.targets.items():
                if ceiling < 0:
                    assert n >= least
                if ceiling >= 0 and None in shapes.values():
                    assert n <= before[role]
                assert n >= min(least, before[role])


@given(histories())
@settings(max_examples=80)
def test_all_that_is_said_can_be_read_back_and_every_role_has_a_reason(history: History) -> None:
    for record in said(history):
        assert decode(stream_of(record), encode(record)) == record
        if isinstance(record, TickReport):
            for role in record.roles.values():
                assert role.reason != "unset"
                values = {c.after for c in role.clamps}
                assert role.target is None or role.target == role.merged or role.target in values
        if isinstance(record, Decision):
            assert record.targets.keys() == record.previous.keys() == record.reasons.keys()
            assert record.targets != record.previous


BLIND = ["no inventory", "no engines", "no traffic"]


@pytest.mark.parametrize("missing", BLIND)
@given(history=histories(revise=False))
@settings(max_examples=60)
def test_what_is_missing_never_scales_down(missing: str, history: History) -> None:
    """Without a kind of input, no step down has the loop that needs it for a reason."""
    config, moves = history
    hidden = {"no inventory": "WorkerInventory", "no engines": "FpmBatch", "no traffic": "TrafficWindow"}[missing]
    outside = ("Proposal", "Prediction")
    seen = [m for m in moves if type(m.record).__name__ not in (hidden, *outside)]
    for record in said((config | {"on_drift": "adopt"}, seen)):
        if not isinstance(record, TickReport):
            continue
        for role in record.roles.values():
            down = role.current is not None and role.target is not None and role.target < role.current
            if missing == "no traffic":
                assert role.floor is None
                assert role.throughput_reason in ("no_traffic_data", "not_due")
            elif missing == "no engines":
                assert role.load_reason != "scale_down"
                assert role.load_reason != "scale_up" or config["capacity_policy"] == "queue_aware"
                # what a decision that is still outstanding asks for is not asked for again
                assert not down or role.reason in ("gpu_budget_ceiling", "set_lower_bound", "scaling_in_progress")
            else:
                assert not down or role.reason in ("gpu_budget_ceiling", "scale_down")


@given(histories(revise=False), st.integers(1, 5))
@settings(max_examples=60)
def test_engines_that_fall_silent_never_scale_down(history: History, kept: int) -> None:
    """The same history, but from some worker on nobody speaks: no decision asks for fewer than without the silence."""
    config, moves = history
    silent = [mute(m, kept) for m in moves]
    for record in said((config, silent)):
        if isinstance(record, TickReport):
            for role in record.roles.values():
                if role.load_reason == "scale_down":
                    assert role.known["workers_with_fpm"] >= role.known["ready"]


def mute(move: Move, kept: int) -> Move:
    """The move without the FPMs of workers above `kept`."""
    record = move.record
    if type(record).__name__ != "FpmBatch":
        return move
    items = [item for item in record.items if item.publisher_id - 7 <= kept]  # type: ignore[union-attr]
    return replace_record(move, replace(record, items=items))  # type: ignore[type-var]


def replace_record(move: Move, record: Record) -> Move:
    return Move(move.after, record, move.ack, move.repeat)


@given(histories(), st.lists(st.floats(-30.0, 30.0), max_size=10))
@settings(max_examples=60)
def test_ticks_at_any_time_neither_break_nor_repeat(history: History, times: list[float]) -> None:
    config, moves = history
    one = player(config)
    ticks: list[int] = []
    due: list[float] = []
    for i, move in enumerate(moves):
        records = one.play(move)
        if i < len(times):
            records += one.planner.tick(one.now + times[i])
        for report in (r for r in records if isinstance(r, TickReport)):
            ticks.append(report.tick)
            due.append(report.due_at)
    assert due == sorted(set(due))


@given(histories(), st.lists(st.floats(-1e9, 1e9), max_size=10))
@settings(max_examples=60)
def test_a_clock_that_jumps_breaks_nothing(history: History, times: list[float]) -> None:
    config, moves = history
    one = player(config)
    for i, move in enumerate(moves):
        one.play(move)
        if i < len(times):
            for record in one.planner.tick(max(0.0, one.now + times[i])):
                assert decode(stream_of(record), encode(record)) == record
            one.planner.tick(one.now)
            assert one.planner.next_tick_at <= one.now + config["load_adjustment_interval_seconds"] + 60.0 + 60.0
