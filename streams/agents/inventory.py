"""Observe the inventory: how many workers each role has, or why that is unknown."""

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.models.known import Known, Unknown
from headrace.schemas.base import Role
from headrace.schemas.inventory import RoleInventory, WorkerInventory


@dataclass(slots=True)
class InventoryObserver:
    """Keeps the newest record by the time it was observed; an older one that comes late changes nothing."""

    stale_after_s: float
    max_skew_s: float
    latest: WorkerInventory | None = None
    heard_at: float = 0.0  # planner's time when it came

    def handle(self, record: WorkerInventory, now: float) -> bool:
        """Take a record in; false when a newer one is known already."""
        if self.latest is not None and record.observed_at < self.latest.observed_at:
            return False
        if record.observed_at > now + self.max_skew_s:  # a clock ahead must not silence all later records
            record = msgspec.structs.replace(record, observed_at=now)
        self.latest, self.heard_at = record, now
        return True

    def role(self, role: Role, now: float) -> Known[RoleInventory] | Unknown:
        """The inventory of a role, or why it is unknown."""
        if self.latest is None:
            return Unknown("no inventory has been published for this DGD")
        age = now - max(self.latest.observed_at, self.heard_at - self.max_skew_s)
        if age > self.stale_after_s:
            return Unknown(f"the inventory of {self.latest.source} is {age:.0f} s old (limit {self.stale_after_s:g} s)")
        found = self.latest.roles.get(role)
        if found is None:
            names = ", ".join(sorted(self.latest.roles)) or "none"
            return Unknown(f"the inventory of {self.latest.source} has no role {role!r} (it has: {names})")
        return Known(found)

    def to_state(self) -> dict[str, Any]:
        return {"latest": msgspec.to_builtins(self.latest), "heard_at": self.heard_at}

    def load_state(self, state: dict[str, Any]) -> None:
        self.latest = msgspec.convert(state["latest"], WorkerInventory | None)
        self.heard_at = state["heard_at"]
