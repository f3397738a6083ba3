"""The decision ledger: one outstanding decision, ids that rise by one, settlement by ack or by timeout."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import msgspec

from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Role
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.errors import RecordError
from headrace.schemas.reasons import DeadLetterReason, Outcome

HIGHEST = 2**62  # no life of a DGD gets there; above it there would be no room for the next id or epoch

_OUTCOMES = {
    AckStatus.APPLIED: Outcome.APPLIED,
    AckStatus.REJECTED: Outcome.REJECTED,
    AckStatus.FAILED: Outcome.FAILED,
    AckStatus.EXPIRED: Outcome.EXPIRED,
}


@dataclass(frozen=True, slots=True)
class Draft:
    """What a decision will say, apart from its place in the order."""

    targets: Mapping[Role, int]
    previous: Mapping[Role, int]
    reasons: Mapping[Role, str]
    causes: Causes
    advisory: bool


@dataclass(slots=True)
class Ledger:
    """The decisions of one DGD, as far as the next one needs them."""

    dgd: str
    ack_timeout_s: float
    epoch: int = 0  # ours; what we issue carries it
    highest_epoch: int = 0  # seen on the log
    next_id: int = 0
    newest: Decision | None = None
    opened_at: float = 0.0  # when the newest was issued, as far as that is believed, seconds
    outcome: Outcome | None = None  # of the newest; None when it was advisory or there is none
    settled_at: float | None = None
    changed_at: float | None = None  # when an executor has last said that counts may have changed by its doing
    in_force: dict[Role, int] | None = None  # targets that an executor has made true and nobody has replaced

    @property
    def outstanding(self) -> Decision | None:
        return self.newest if self.outcome is Outcome.OUTSTANDING else None

    @property
    def fenced(self) -> bool:
        """Has a newer owner decided? Then we are not the writer of this DGD any more."""
        return self.highest_epoch > self.epoch

    def adopt(self, decision: Decision, now: float = inf) -> bool:
        """Take in a decision found on the log, ours or another owner's; false when it is not newer than what is known.

        A higher epoch is newer whatever its id: its owner has overruled us. The timeout of its ack runs from its issue,
        or from `now` if that is earlier. Raises RecordError for numbers that no planner reaches.
        """
        if max(decision.epoch, decision.decision_id) >= HIGHEST:
            raise RecordError(
                f"decision {decision.decision_id} of epoch {decision.epoch}: both must be below 2^62 for the next",
                reason=DeadLetterReason.INVALID,
            )
        self.highest_epoch = max(self.highest_epoch, decision.epoch)
        if self.newest is not None and _place(decision) <= _place(self.newest):
            return False
        self._open(decision, min(decision.issued_at, now))
        return True

    def issue(self, draft: Draft, now: float) -> Decision:
        """The next decision; the caller has checked that none is outstanding."""
        assert self.outstanding is None
        decision = Decision(
            dgd=self.dgd,
            epoch=self.epoch,
            decision_id=self.next_id,
            issued_at=now,
            expires_at=now + self.ack_timeout_s,
            targets=dict(draft.targets),
            previous=dict(draft.previous),
            reasons=dict(draft.reasons),
            causes=draft.causes,
            advisory=draft.advisory,
        )
        self._open(decision, now)
        return decision

    def begin_epoch(self) -> int:
        """Become the owner: every epoch seen so far is a former one."""
        self.epoch = self.highest_epoch = max(self.epoch, self.highest_epoch) + 1
        return self.epoch

    def settle(self, ack: DecisionAck, now: float) -> bool:
        """Settle the outstanding decision by an ack for it, or for a later id, of its own epoch."""
        d = self.outstanding
        if d is None or not ack.status.settles or ack.epoch != d.epoch or ack.decision_id < d.decision_id:
            return False
        self._close(_OUTCOMES[ack.status], now)
        return True

    def expire(self, now: float) -> Decision | None:
        """Give up waiting `ack_timeout` seconds after the decision was issued. Returns what is given up, or None."""
        d = self.outstanding
        self.opened_at = min(self.opened_at, now)  # a former owner's clock may have been ahead
        if d is None or now < self.opened_at + self.ack_timeout_s:
            return None
        self._close(Outcome.TIMED_OUT, now)
        return d

    def let_go(self) -> None:
        """Nothing that was decided is in force any more: somebody else is in charge of the counts."""
        self.in_force = None

    def _open(self, decision: Decision, at: float) -> None:
        self.newest, self.opened_at = decision, at
        self.next_id = max(self.next_id, decision.decision_id + 1)
        self.outcome = None if decision.advisory else Outcome.OUTSTANDING

    def _close(self, outcome: Outcome, now: float) -> None:
        assert self.newest is not None
        self.outcome, self.settled_at = outcome, now
        if outcome in (Outcome.APPLIED, Outcome.FAILED):
            self.changed_at = now
        self.in_force = (
            dict(self.newest.targets) if outcome is Outcome.APPLIED else None
        )  # else: what runs is what counts

    def to_state(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "highest_epoch": self.highest_epoch,
            "next_id": self.next_id,
            "newest": msgspec.to_builtins(self.newest),
            "opened_at": self.opened_at,
            "outcome": self.outcome,
            "settled_at": self.settled_at,
            "changed_at": self.changed_at,
            "in_force": self.in_force,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.highest_epoch = state["highest_epoch"]
        self.next_id = state["next_id"]
        self.newest = msgspec.convert(state["newest"], Decision | None)
        self.opened_at = state["opened_at"]
        self.outcome = None if state["outcome"] is None else Outcome(state["outcome"])
        self.settled_at, self.changed_at = state["settled_at"], state["changed_at"]
        self.in_force = state["in_force"]


def _place(decision: Decision) -> tuple[int, int]:
    return (decision.epoch, decision.decision_id)
