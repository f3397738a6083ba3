"""The gate: only the newest decision, once, while it is unsettled, unexpired and meant."""

import pytest
from decision_support import DGD, ack, decision

from headrace.connectors.executors.gate import DecisionGate, Refusal
from headrace.schemas.ack import AckStatus

NOW = 1500.0


def gate_with(*decisions: object) -> DecisionGate:
    gate = DecisionGate(DGD)
    for d in decisions:
        gate.offer(d)  # type: ignore[arg-type]
    return gate


def test_a_decision_is_handed_out_once() -> None:
    gate = gate_with(decision(0))
    assert gate.take(NOW) == decision(0)
    assert gate.take(NOW) is None


def test_without_a_decision_there_is_nothing_to_take() -> None:
    assert DecisionGate(DGD).take(NOW) is None


def test_a_decision_that_could_not_be_tried_is_handed_out_again() -> None:
    gate = gate_with(decision(0))
    gate.take(NOW)
    gate.give_back(decision(0))
    assert gate.take(NOW) == decision(0)


def test_giving_back_an_older_decision_does_not_repeat_the_newest() -> None:
    gate = gate_with(decision(0), decision(1))
    gate.take(NOW)
    gate.give_back(decision(0))
    assert gate.take(NOW) is None


def test_a_redelivered_decision_changes_nothing() -> None:
    gate = gate_with(decision(0))
    gate.take(NOW)
    assert gate.offer(decision(0)) is Refusal.REPEATED
    assert gate.take(NOW) is None


def test_only_the_newest_of_several_is_handed_out() -> None:
    assert gate_with(decision(0), decision(2), decision(1)).take(NOW) == decision(2)


def test_an_older_decision_that_comes_late_is_superseded() -> None:
    gate = gate_with(decision(3))
    assert gate.offer(decision(2)) is Refusal.SUPERSEDED
    assert gate.refusal(decision(2), NOW) is Refusal.SUPERSEDED


def test_a_decision_of_an_older_epoch_is_refused_however_high_its_id() -> None:  # T30
    gate = gate_with(decision(3, epoch=2))
    assert gate.offer(decision(99, epoch=1)) is Refusal.STALE_EPOCH
    assert gate.take(NOW) == decision(3, epoch=2)


def test_a_new_owner_may_begin_below_the_ids_of_the_old_one() -> None:
    assert gate_with(decision(9, epoch=1), decision(0, epoch=2)).take(NOW) == decision(0, epoch=2)


def test_another_content_under_the_same_id_is_not_acted_on() -> None:
    gate = gate_with(decision(3))
    other = decision(3, targets={"decode": 99})
    assert gate.offer(other) is Refusal.CONFLICTING
    assert gate.refusal(other, NOW) is Refusal.CONFLICTING
    assert gate.take(NOW) == decision(3)


def test_an_expired_decision_is_not_handed_out() -> None:
    gate = gate_with(decision(0))
    assert gate.refusal(decision(0), 2000.0) is Refusal.EXPIRED
    assert gate.take(2000.0) is None
    assert gate.take(1999.9) == decision(0)


def test_an_advisory_decision_is_for_nobody() -> None:
    gate = gate_with(decision(0, advisory=True))
    assert gate.refusal(decision(0, advisory=True), NOW) is Refusal.ADVISORY
    assert gate.take(NOW) is None


def test_an_advisory_decision_takes_the_place_of_an_older_one() -> None:
    """The planner has gone on: what it decided before it was told only to advise is not carried out any more."""
    gate = gate_with(decision(0), decision(1, advisory=True))
    assert gate.take(NOW) is None
    assert gate.refusal(decision(0), NOW) is Refusal.SUPERSEDED


@pytest.mark.parametrize("status", [AckStatus.APPLIED, AckStatus.REJECTED, AckStatus.FAILED, AckStatus.EXPIRED])
def test_a_settled_decision_is_not_handed_out(status: AckStatus) -> None:
    gate = gate_with(decision(4))
    gate.settle(ack(4, status=status))
    assert gate.take(NOW) is None
    assert gate.refusal(decision(4), NOW) is Refusal.SETTLED


def test_an_accepted_decision_is_not_settled() -> None:
    gate = gate_with(decision(4))
    gate.settle(ack(4, status=AckStatus.ACCEPTED))
    assert gate.take(NOW) == decision(4)


def test_an_ack_settles_what_came_before_it() -> None:
    gate = gate_with(decision(4))
    gate.settle(ack(6))
    assert gate.refusal(decision(4), NOW) is Refusal.SETTLED


def test_an_ack_of_an_older_decision_or_epoch_settles_nothing_newer() -> None:
    gate = gate_with(decision(4, epoch=2))
    gate.settle(ack(3, epoch=2))
    gate.settle(ack(9, epoch=1))
    assert gate.take(NOW) == decision(4, epoch=2)


def test_an_ack_of_a_newer_epoch_makes_older_epochs_stale() -> None:
    gate = gate_with(decision(4, epoch=1))
    gate.settle(ack(5, epoch=2))
    assert gate.refusal(decision(4, epoch=1), NOW) is Refusal.STALE_EPOCH


def test_acks_that_come_in_any_order_settle_the_same() -> None:
    gate = gate_with(decision(4))
    gate.settle(ack(4))
    gate.settle(ack(2))
    assert gate.take(NOW) is None


def test_another_dgds_records_change_nothing() -> None:
    gate = gate_with(decision(4))
    assert gate.offer(decision(9, dgd="ml/other")) is Refusal.OTHER_DGD
    assert gate.refusal(decision(9, dgd="ml/other"), NOW) is Refusal.OTHER_DGD
    gate.settle(ack(4, dgd="ml/other"))
    assert gate.take(NOW) == decision(4)


def test_a_decision_that_was_never_offered_can_be_asked_about() -> None:
    assert DecisionGate(DGD).refusal(decision(4), NOW) is None
