"""The decision ledger: one outstanding decision, ids that rise by one, settlement by ack or by timeout."""

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Role
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.reasons import Outcome

_OUTCOMES = {
    AckStatus.APPLIED: Outcome.APPLIED,
    AckStatus.REJECTED: Outcome.REJECTED,
    AckStatus.FAILED: Outcome.FAILED,
    AckStatus.EXPIRED: Outcome.EXPIRED,
}


@dataclass(slots=True)
class Ledger:
    """The decisions of one DGD, as far as the next one needs them."""

    ack_timeout_s: float
    epoch: int = 0  # ours; what we issue carries it
    highest_epoch: int = 0  # seen on the log
    newest: Decision | None = None
    outcome: Outcome | None = None  # of the newest; None when it was advisory or there is none
    settled_at: float = 0.0
    in_force: dict[Role, int] | None = None  # targets that an executor has made true and nobody has replaced

    @property
    def outstanding(self) -> Decision | None:
        return self.newest if self.outcome is Outcome.OUTSTANDING else None

    @property
    def fenced(self) -> bool:
        """Has a newer owner decided? Then we are not the writer of this DGD any more."""
        return self.highest_epoch > self.epoch

    @property
    def next_id(self) -> int:
        return 0 if self.newest is None else self.newest.decision_id + 1

    def adopt(self, decision: Decision) -> bool:
        """Take in a decision found on the log, ours or a former owner's; false when it is not newer than what is known."""
        if decision.decision_id < self.next_id:
            return False
        self._open(decision)
        return True

    def issue(self, *, dgd: str, now: float, targets: dict[Role, int], previous: dict[Role, int],
              reasons: dict[Role, str], causes: Causes, advisory: bool) -> Decision:  # fmt: skip
        """The next decision; the caller has checked that none is outstanding."""
        assert self.outstanding is None
        decision = Decision(
            dgd=dgd,
            epoch=self.epoch,
            decision_id=self.next_id,
            issued_at=now,
            expires_at=now + self.ack_timeout_s,
            targets=targets,
            previous=previous,
            reasons=reasons,
            causes=causes,
            advisory=advisory,
        )
        self._open(decision)
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

    def expire(self, now: float) -> bool:
        """Give up waiting `ack_timeout` seconds after the decision was issued."""
        d = self.outstanding
        if d is None or now < d.issued_at + self.ack_timeout_s:
            return False
        self._close(Outcome.TIMED_OUT, now)
        return True

    def _open(self, decision: Decision) -> None:
        self.newest = decision
        self.highest_epoch = max(self.highest_epoch, decision.epoch)
        self.outcome = None if decision.advisory else Outcome.OUTSTANDING

    def _close(self, outcome: Outcome, now: float) -> None:
        assert self.newest is not None
        self.outcome, self.settled_at = outcome, now
        self.in_force = dict(self.newest.targets) if outcome is Outcome.APPLIED else None  # else: what runs is what counts

    def to_state(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "highest_epoch": self.highest_epoch,
            "newest": msgspec.to_builtins(self.newest),
            "outcome": self.outcome,
            "settled_at": self.settled_at,
            "in_force": self.in_force,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.highest_epoch = state["highest_epoch"]
        self.newest = msgspec.convert(state["newest"], Decision | None)
        self.outcome = None if state["outcome"] is None else Outcome(state["outcome"])
        self.settled_at = state["settled_at"]
        self.in_force = state["in_force"]
