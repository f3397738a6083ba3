"""How long a scale-up takes, measured from decisions and their acks."""

from dataclasses import dataclass
from typing import Any

from headrace.schemas.reasons import Outcome
from headrace.streams.agents.ledger import Ledger

NEW = 0.5  # weight of the newest
EXPECTED_S = 30.0  # until one was measured


@dataclass(slots=True)
class StartupTimer:
    """From the issue of a decision to grow until an executor says that it is applied: its workers serve then."""

    seconds: float | None = None  # exponential mean; None until one was measured
    decision_id: int = -1  # the last one looked at

    @property
    def expected_s(self) -> float:
        return EXPECTED_S if self.seconds is None else self.seconds

    def look(self, ledger: Ledger) -> None:
        """Take in the newest decision, once, when it has been applied."""
        d = ledger.newest
        if d is None or d.decision_id == self.decision_id or ledger.outcome is not Outcome.APPLIED:
            return
        self.decision_id = d.decision_id
        grows = any(n > d.previous.get(role, 0) for role, n in d.targets.items())
        if not grows or ledger.settled_at is None:
            return
        took = max(0.0, ledger.settled_at - d.issued_at)
        self.seconds = took if self.seconds is None else self.seconds + NEW * (took - self.seconds)

    def to_state(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "decision_id": self.decision_id}

    def load_state(self, state: dict[str, Any]) -> None:
        seconds = state["seconds"]
        self.seconds, self.decision_id = None if seconds is None else float(seconds), int(state["decision_id"])
