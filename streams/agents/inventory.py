"""Observe the inventory: how many workers each role has, or why that is unknown."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.models.known import Known, Unknown
from headrace.schemas.base import Role
from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory

_SHOWN_NAMES = 8


class Sighting(msgspec.Struct, frozen=True):
    """What was said last about one role."""

    inventory: RoleInventory
    source: str
    observed_at: float  # seconds, the source's clock as far as it is believed
    heard_at: float  # seconds, the planner's


@dataclass(slots=True)
class InventoryObserver:
    """Keeps, for every planned role, the newest sighting by the time it was observed; what comes late changes nothing.

    Sources may name different roles. What never changes while a role runs (GPUs, capabilities) stays as it was said
    when a later record does not say it.
    """

    roles: Collection[Role]
    stale_after_s: float
    max_skew_s: float
    seen: dict[Role, Sighting] = field(default_factory=dict)
    named: list[str] = field(
        default_factory=list
    )  # roles of the newest record, for the message about one that is missing

    @property
    def heard(self) -> bool:
        """Has any inventory been published?"""
        return bool(self.named or self.seen)

    def handle(self, record: WorkerInventory, now: float) -> bool:
        """Take a record in; false when all that it says is known already, or something newer is."""
        # A clock ahead must not silence all later records.
        observed_at = record.observed_at if record.observed_at <= now + self.max_skew_s else now
        news = False
        for role, inventory in record.roles.items():
            before = self.seen.get(role)
            if role not in self.roles or (before is not None and observed_at <= before.observed_at):
                continue
            if before is not None:
                inventory = _keep_said(inventory, before.inventory)
            self.seen[role] = Sighting(inventory, record.source, observed_at, now)
            news = True
        if news or not self.heard:
            self.named = sorted(record.roles)[:_SHOWN_NAMES]
        return news

    def role(self, role: Role, now: float) -> Known[RoleInventory] | Unknown:
        """The inventory of a role, or why it is unknown."""
        sighting = self.seen.get(role)
        if sighting is None:
            if not self.heard:
                return Unknown("no inventory has been published for this DGD")
            names = ", ".join(name[:64] for name in self.named) or "none"
            return Unknown(f"no inventory names the role {role!r} (there are: {names})")
        age = now - self.seen_at(role)
        if age > self.stale_after_s:
            return Unknown(f"the inventory of {sighting.source} is {age:.0f} s old (limit {self.stale_after_s:g} s)")
        return Known(sighting.inventory)

    def seen_at(self, role: Role) -> float:
        """When the role was seen like this, seconds. A source's clock far behind is not believed either."""
        sighting = self.seen[role]
        return max(sighting.observed_at, sighting.heard_at - self.max_skew_s)

    def to_state(self) -> dict[str, Any]:
        return {"seen": msgspec.to_builtins(self.seen), "named": self.named}

    def load_state(self, state: dict[str, Any]) -> None:
        seen = msgspec.convert(state["seen"], dict[str, Sighting])
        self.seen = {role: sighting for role, sighting in seen.items() if role in self.roles}
        self.named = state["named"]


def _keep_said(now: RoleInventory, before: RoleInventory) -> RoleInventory:
    """The new sighting, completed by what only the old one says of a replica's shape."""
    shape = {
        name: before_says
        for name in ("gpus_per_replica", "gpus_per_node", "nodes_per_replica")
        if getattr(now, name) is None and (before_says := getattr(before, name)) is not None
    }
    if now.capabilities is None or before.capabilities is None:
        capabilities = now.capabilities or before.capabilities
    else:
        said = {name: getattr(before.capabilities, name) for name in Capabilities.__struct_fields__}
        missing = {n: v for n, v in said.items() if v is not None and getattr(now.capabilities, n) is None}
        capabilities = replace(now.capabilities, **missing) if missing else now.capabilities
    return replace(now, capabilities=capabilities, **shape)
