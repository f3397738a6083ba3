"""The decision ledger: ids, epochs, settlement."""

import msgspec
import pytest
from msgspec.structs import replace
from world import DGD, ack

from headrace.schemas.decision import Causes
from headrace.schemas.errors import RecordError
from headrace.schemas.reasons import Outcome
from headrace.streams.agents.ledger import Draft, Ledger


def ledger() -> Ledger:
    made = Ledger(DGD, ack_timeout_s=1800.0)
    made.begin_epoch()
    return made


def issue(made: Ledger, now: float = 0.0, advisory: bool = False, **targets: int):
    return made.issue(
        Draft(targets or {"decode": 2}, {"decode": 1}, {"decode": "scale_up"}, Causes(tick=1), advisory), now
    )


def test_ids_begin_at_zero_and_rise_by_one():
    made = ledger()
    for i in range(5):
        decision = issue(made, float(i))
        assert (decision.decision_id, decision.epoch) == (i, 1)
        made.settle(ack(decision, float(i)), float(i))


def test_a_decision_expires_when_its_ack_would_come_too_late():
    assert issue(ledger(), 100.0).expires_at == 1900.0


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("applied", Outcome.APPLIED),
        ("rejected", Outcome.REJECTED),
        ("failed", Outcome.FAILED),
        ("expired", Outcome.EXPIRED),
    ],
)
def test_every_final_ack_settles(status, outcome):  # case T36, dynamo#10525, #8774
    made = ledger()
    assert made.settle(ack(issue(made), 3.0, status), 3.0)
    assert (made.outstanding, made.outcome, made.settled_at) == (None, outcome, 3.0)
    assert issue(made, 4.0).decision_id == 1


def test_accepted_settles_nothing():
    made = ledger()
    decision = issue(made)
    assert not made.settle(ack(decision, 3.0, "accepted"), 3.0)
    assert made.outstanding is decision


def test_an_ack_for_a_later_id_of_the_same_epoch_settles():
    made = ledger()
    assert made.settle(ack(issue(made), 3.0, decision_id=7), 3.0)


def test_an_ack_for_an_earlier_id_or_another_epoch_settles_nothing():
    made = ledger()
    made.settle(ack(issue(made), 0.0), 0.0)
    second = issue(made)
    assert not made.settle(ack(second, 1.0, decision_id=0), 1.0)
    assert not made.settle(ack(second, 1.0, epoch=0), 1.0)
    assert not made.settle(ack(second, 1.0, epoch=2, decision_id=9), 1.0)
    assert made.outstanding is second


def test_a_repeated_ack_changes_nothing():
    made = ledger()
    said = ack(issue(made), 3.0)
    made.settle(said, 3.0)
    before = made.to_state()
    assert not made.settle(replace(said, status="rejected"), 9.0)
    assert made.to_state() == before


def test_no_ack_within_the_timeout_gives_the_decision_up():  # case T23, dynamo#8422
    made = ledger()
    decision = issue(made, 100.0)
    assert made.expire(1899.9) is None
    assert made.expire(1900.0) is decision
    assert (made.outstanding, made.outcome) == (None, Outcome.TIMED_OUT)
    assert made.expire(1901.0) is None


@pytest.mark.parametrize(("status", "in_force"), [("applied", {"decode": 2}), ("rejected", None), ("failed", None)])
def test_what_was_applied_is_in_force_and_nothing_else(status, in_force):
    made = ledger()
    made.settle(ack(issue(made), 1.0, status), 1.0)
    assert made.in_force == in_force


def test_advice_is_never_outstanding_and_takes_an_id():
    made = ledger()
    advice = issue(made, advisory=True)
    assert (made.outstanding, made.outcome, advice.decision_id) == (None, None, 0)
    assert not made.settle(ack(advice, 1.0), 1.0)
    assert issue(made).decision_id == 1


# other owners


def test_a_former_owners_decision_is_waited_for_and_its_ack_settles_it():
    former, made = ledger(), Ledger(DGD, 1800.0)
    decision = issue(former, 50.0)
    assert made.adopt(decision)
    assert made.begin_epoch() == 2
    assert made.outstanding is decision
    assert made.settle(ack(decision, 70.0), 70.0)
    assert (issue(made, 71.0).decision_id, made.epoch) == (1, 2)


def test_our_own_decision_from_the_log_changes_nothing():
    made = ledger()
    decision = issue(made)
    before = made.to_state()
    assert not made.adopt(decision)
    assert made.to_state() == before


@pytest.mark.parametrize("their_id", [0, 1, 2, 9])
def test_a_decision_of_a_newer_epoch_fences_whatever_its_id(their_id):  # case T30, wva#1044
    made = ledger()
    made.settle(ack(issue(made), 0.0), 0.0)
    theirs = replace(issue(made), epoch=2, decision_id=their_id)
    assert not made.fenced
    assert made.adopt(theirs)
    assert made.fenced
    assert made.newest is theirs


def test_a_decision_of_an_older_epoch_changes_nothing():  # case T30
    made = ledger()
    made.begin_epoch()
    mine = issue(made)
    assert not made.adopt(replace(mine, epoch=1, decision_id=8))
    assert (made.newest, made.next_id, made.fenced) == (mine, 1, False)


def test_ids_never_go_back_after_another_owner():
    made = ledger()
    for _ in range(3):
        made.settle(ack(issue(made), 0.0), 0.0)
    made.adopt(replace(made.newest, epoch=2, decision_id=1))
    made.begin_epoch()
    made.settle(ack(made.newest, 1.0), 1.0)
    assert issue(made).decision_id == 3


@pytest.mark.parametrize("absurd", [{"decision_id": 2**62}, {"epoch": 2**63 - 1}])
def test_numbers_that_leave_no_room_are_refused(absurd):
    made = ledger()
    decision = issue(made)
    before = made.to_state()
    with pytest.raises(RecordError, match=r"2\^62"):
        made.adopt(replace(decision, **absurd))
    assert made.to_state() == before


def test_a_decision_from_the_future_is_not_waited_for_longer_than_others():
    made, other = Ledger(DGD, 1800.0), ledger()
    made.adopt(replace(issue(other), issued_at=1e9))
    assert made.expire(100.0) is None
    assert made.expire(1899.0) is None
    assert made.expire(1900.0) is not None


@pytest.mark.parametrize("settle", [True, False])
def test_state_comes_back_as_it_was(settle):
    made = ledger()
    decision = issue(made)
    if settle:
        made.settle(ack(decision, 3.0), 3.0)
    other = Ledger(DGD, 1800.0)
    other.load_state(msgspec.json.decode(msgspec.json.encode(made.to_state())))
    assert other == made
