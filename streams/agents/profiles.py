"""Take in what was known of engines before they served, and say where their speed is known from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.models.perf.engine import EngineModel
from headrace.models.profile.rows import iterations
from headrace.schemas.base import Role
from headrace.schemas.engine_profiles import EngineProfiles, RoleProfile, Source
from headrace.schemas.profile import EngineProfile

HALF = 0.5


@dataclass(slots=True)
class Profiles:
    """The newest profile of each role. Models learn it at once, and forget it as live iterations come."""

    at: float = -1.0  # of the newest record, seconds
    known: dict[Role, RoleProfile] = field(default_factory=dict)

    def handle(self, record: EngineProfiles, models: Mapping[Role, EngineModel], now: float) -> list[str]:
        """Take a newer record in; what to tell people of it. A repeated, late or foreign one changes nothing.

        A clock ahead does not shut out what comes later: a record is no newer than `now`.
        """
        if record.at <= self.at:
            return []
        self.at = min(record.at, now)
        notes = []
        for role, found in record.roles.items():
            if role not in models:
                notes.append(f"a profile of {role} engines came, and this planner has none: not used")
            elif found != self.known.get(role):
                self.known[role] = found
                self.teach(role, models[role])
                notes.append(said(role, found))
        return notes

    def of(self, role: Role) -> EngineProfile:
        """What is known of a role's engines; an empty profile where nothing is."""
        return self.known[role].profile if role in self.known else EngineProfile()

    def teach(self, role: Role, model: EngineModel) -> None:
        """Give a model of this role what is known beforehand; nothing where nothing is."""
        if role in self.known:
            model.know_beforehand(*iterations(self.known[role].profile, role).columns)

    def source(self, role: Role, model: EngineModel) -> str:
        """Where most of what the model knows is from; empty where it knows nothing."""
        live = model.live_share
        if live is None:
            return ""
        known = self.known.get(role)
        return Source.LIVE if known is None or live >= HALF else known.source

    def to_state(self) -> dict[str, Any]:
        return {"at": self.at, "known": msgspec.to_builtins(self.known)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.at = float(state["at"])
        self.known = msgspec.convert(state["known"], dict[Role, RoleProfile])


def said(role: Role, found: RoleProfile) -> str:
    """One line for people."""
    others = "; ".join(f"{source}: {why}" for source, why in found.not_used.items())
    return f"{role} speed from {found.source}" + (f" ({others})" if others else "")
