"""The demand to plan for: what arrives now, carried on over the time that a new worker needs, and what is forecast."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from headrace.models.scaling.demand import Slice, lengths, rate, slice_of, spread
from headrace.models.scaling.queueing import Demand
from headrace.schemas.config import PlannerConfig
from headrace.schemas.prediction import Prediction
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.agents.throughput import accept_length
from headrace.streams.agents.traffic import TrafficObserver
from headrace.streams.agents.view import RoleView

KEPT_S = 600.0  # of traffic
MOST_SLICES = 1200
RECENT_S = 30.0
MINUTE_S = 60.0
LENGTHS_S = 120.0


@dataclass(frozen=True, slots=True)
class Ahead:
    """The demand to plan for, and the numbers it comes from."""

    demand: Demand
    evidence: Mapping[str, float]


@dataclass(slots=True)
class DemandAhead:
    """Remembers ten minutes of traffic."""

    config: PlannerConfig
    slices: deque[Slice] = field(default_factory=deque)

    def observe(self, window: TrafficWindow, now: float) -> None:
        """Take in a window that the traffic observer has taken. A clock ahead must not outshine what follows."""
        found = slice_of(window)
        if found is not None and found.end > now - KEPT_S:
            believed = found.end <= now + self.config.max_clock_skew_seconds
            self.slices.append(found if believed else msgspec.structs.replace(found, end=now))
            while len(self.slices) > MOST_SLICES:
                self.slices.popleft()

    def forget(self, now: float) -> None:
        while self.slices and self.slices[0].end < now - KEPT_S:
            self.slices.popleft()

    def look(self, prediction: Prediction | None, startup_s: float, now: float) -> Ahead | None:
        """The demand over the time that a new worker needs; None while it is unknown.

        The larger of what is measured, with its rise, and what is forecast: a forecast that is too low must not starve
        what arrives already. It also speaks where nothing is measured, if it names lengths.
        """
        kept = list(self.slices)
        seen = _measured(kept, startup_s + self.config.planning_interval_seconds, now)
        typical = lengths([s for s in kept if s.end > now - LENGTHS_S]) or lengths(kept) or _said(prediction)
        forecast = None if prediction is None else prediction.requests_per_s
        rates = [r for r in (seen, forecast) if r is not None]
        if not rates or typical is None:
            return None
        cv2 = spread(kept)
        demand = Demand(max(rates), *typical, isl_cv2=1.0 if cv2 is None else cv2)
        evidence = {"planned_rps": max(rates), "isl": typical[0], "osl": typical[1], "isl_cv2": demand.isl_cv2}
        recent = rate(kept, now - _fresh_s(kept))
        return Ahead(demand, evidence | ({} if recent is None else {"demand_rps": recent}))

    def to_state(self) -> list[Any]:
        """JSON-able."""
        found: list[Any] = msgspec.to_builtins(list(self.slices))
        return found

    def load_state(self, state: list[Any]) -> None:
        self.slices = deque(msgspec.convert(state, list[Slice]))


def for_role(ahead: Ahead, view: RoleView, traffic: TrafficObserver) -> Demand:
    """The demand as the engines of one role meet it: with cache hits and speculation."""
    accepted = accept_length(traffic.accept_length, view)
    return replace(ahead.demand, kv_hit_rate=traffic.kv_hit_rate, accept_length=accepted)


def _measured(kept: list[Slice], horizon_s: float, now: float) -> float | None:
    """Requests/s: the last 30 s, or the last minute with its rise carried on, whichever is more."""
    recent, minute = rate(kept, now - _fresh_s(kept)), rate(kept, now - MINUTE_S)
    if recent is None or minute is None:
        return recent
    before = rate(kept, now - 2 * MINUTE_S, now - MINUTE_S)
    rising = 0.0 if before is None else max(0.0, minute - before) / MINUTE_S
    return max(recent, minute + rising * horizon_s)


def _fresh_s(kept: list[Slice]) -> float:
    """How long a rate counts as the present one: half a minute, or until two windows of a slower source have failed."""
    return max(RECENT_S, 2.0 * kept[-1].seconds if kept else 0.0)


def _said(p: Prediction | None) -> tuple[float, float] | None:
    return None if p is None or p.isl is None or p.osl is None else (p.isl, p.osl)
