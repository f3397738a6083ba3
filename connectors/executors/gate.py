"""Which decision an executor may act on. Pure: deliveries, acks and the time come in, a decision or a refusal goes out.

Decisions are ordered by epoch, then id. Whatever the order and number of deliveries, only the newest one that was seen
can be acted on, and only while it is unsettled and not expired. A newer decision that is advisory takes the place of
older ones too: its planner has gone on, and nobody shall act on what it left behind.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.schemas.ack import DecisionAck
from headrace.schemas.decision import Decision

Place = tuple[int, int]  # epoch, decision id


class Refusal(StrEnum):
    """Why a decision is not acted on."""

    OTHER_DGD = "other_dgd"
    STALE_EPOCH = "stale_epoch"  # a planner that no longer owns the DGD
    SUPERSEDED = "superseded"  # a newer decision has been seen
    CONFLICTING = "conflicting"  # the same epoch and id as another one: the first seen counts
    ADVISORY = "advisory"
    SETTLED = "settled"  # an executor has said how it ended
    EXPIRED = "expired"
    REPEATED = "repeated"  # handed out already


def place(record: Decision | DecisionAck) -> Place:
    return record.epoch, record.decision_id


@dataclass(slots=True)
class DecisionGate:
    """The gate of one DGD. Feed it with :meth:`offer` and :meth:`settle`; ask with :meth:`refusal` and :meth:`take`."""

    dgd: str
    newest: Decision | None = None
    settled: Place = (-1, -1)  # up to here, by acks
    taken: Place = (-1, -1)  # last handed out

    def offer(self, decision: Decision) -> Refusal | None:
        """Take a delivered decision in. Returns why it does not become the newest, or None."""
        if decision.dgd != self.dgd:
            return Refusal.OTHER_DGD
        newest = self.newest
        if newest is not None and place(decision) <= place(newest):
            return Refusal.REPEATED if decision == newest else self._older(decision, newest)
        self.newest = decision
        return None

    def settle(self, ack: DecisionAck) -> None:
        """Take an ack in: it settles its decision and all before it."""
        if ack.dgd == self.dgd and ack.status.settles:
            self.settled = max(self.settled, place(ack))

    def refusal(self, decision: Decision, now: float) -> Refusal | None:
        """Why this decision shall not be acted on at `now` (s), or None when it may be."""
        if decision.dgd != self.dgd:
            return Refusal.OTHER_DGD
        newest = self.newest
        if newest is not None and decision != newest and place(decision) <= place(newest):
            return self._older(decision, newest)
        if decision.epoch < self.settled[0]:
            return Refusal.STALE_EPOCH
        if decision.advisory:
            return Refusal.ADVISORY
        if place(decision) <= self.settled:
            return Refusal.SETTLED
        if decision.expires_at <= now:
            return Refusal.EXPIRED
        return None

    def take(self, now: float) -> Decision | None:
        """The decision to act on, once; None when there is none, or when it was handed out already."""
        decision = self.newest
        if decision is None or place(decision) == self.taken or self.refusal(decision, now) is not None:
            return None
        self.taken = place(decision)
        return decision

    def give_back(self, decision: Decision) -> None:
        """It was not acted on: hand it out again."""
        if place(decision) == self.taken:
            self.taken = (-1, -1)

    @staticmethod
    def _older(decision: Decision, newest: Decision) -> Refusal:
        if decision.epoch < newest.epoch:
            return Refusal.STALE_EPOCH
        return Refusal.CONFLICTING if place(decision) == place(newest) else Refusal.SUPERSEDED
