"""The demand to plan for: what arrives now, carried on over the time that a new worker needs, and what is forecast."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import msgspec

from headrace.models.scaling.demand import (
    Slice,
    answer_cv2,
    dispersion,
    lengths,
    merged,
    prompt_mix,
    rate,
    slice_of,
    together,
    trend,
)
from headrace.models.scaling.mix import UNKNOWN
from headrace.models.scaling.queueing import Demand
from headrace.schemas.config import PlannerConfig
from headrace.schemas.prediction import Prediction
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.agents.throughput import accept_length
from headrace.streams.agents.traffic import TrafficObserver
from headrace.streams.agents.view import RoleView

KEPT_S = 600.0  # of traffic
GRAIN_S = 5.0  # windows that follow each other are put together up to this,
MIX_GRAIN_S = 60.0  # and their histograms up to this
TOUCH_S = 0.01  # between the end of one and the start of the next
MOST_SLICES = 1200
RECENT_S = 30.0
MINUTE_S = 60.0
LONGEST_S = 300.0  # of a mean, however slow a start-up is
LENGTHS_S = 120.0


Asked = tuple[Prediction | None, float, float]  # what :meth:`DemandAhead.look` is asked


@dataclass(frozen=True, slots=True)
class Ahead:
    """The demand to plan for, and the numbers it comes from."""

    demand: Demand
    evidence: Mapping[str, float]


@dataclass(slots=True)
class DemandAhead:
    """Remembers ten minutes of traffic."""

    config: PlannerConfig
    slices: deque[Slice] = field(default_factory=deque)  # without histograms
    mixes: deque[Slice] = field(default_factory=deque)  # the same with them, in longer grains
    _found: tuple[Asked, Ahead | None] | None = field(default=None, repr=False, compare=False)  # a tick looks twice

    def configure(self, config: PlannerConfig) -> None:
        self.config, self._found = config, None

    def observe(self, window: TrafficWindow, now: float) -> None:
        """Take in a window that the traffic observer has taken. A clock ahead must not outshine what follows."""
        self._found = None
        found = slice_of(window)
        if found is not None and found.end > now - KEPT_S:
            believed = found.end <= now + self.config.max_clock_skew_seconds
            self._add(found if believed else msgspec.structs.replace(found, end=now))
            for kept in (self.slices, self.mixes):
                while len(kept) > MOST_SLICES:
                    kept.popleft()

    def _add(self, new: Slice) -> None:
        """Windows of a fast source are kept in grains: what a tick costs must not grow with the scrape rate."""
        _keep(self.slices, msgspec.structs.replace(new, isl_parts=(), osl_parts=()), GRAIN_S)
        _keep(self.mixes, new, MIX_GRAIN_S)

    def forget(self, now: float) -> None:
        for kept in (self.slices, self.mixes):
            while kept and kept[0].end < now - KEPT_S:
                kept.popleft()
                self._found = None

    def look(self, prediction: Prediction | None, startup_s: float, now: float) -> Ahead | None:
        """The demand over the time that a new worker needs; None while it is unknown.

        The larger of what is measured, with its rise, and what is forecast: a forecast that is too low must not starve
        what arrives already. It also speaks where nothing is measured, if it names lengths.
        """
        asked = (prediction, startup_s, now)
        if self._found is None or self._found[0] != asked:
            self._found = (asked, self._look(*asked))
        return self._found[1]

    def _look(self, prediction: Prediction | None, startup_s: float, now: float) -> Ahead | None:
        kept = list(self.slices)
        z = NormalDist().inv_cdf(1.0 - self.config.queue_late_share)
        seen = _measured(kept, startup_s, startup_s + self.config.planning_interval_seconds, z, now)
        typical = lengths([s for s in kept if s.end > now - LENGTHS_S]) or lengths(kept) or _said(prediction)
        forecast = None if prediction is None else prediction.requests_per_s
        rates = [r for r in (seen, forecast) if r is not None]
        if not rates or typical is None:
            return None
        mix, bursts = prompt_mix(self.mixes) or UNKNOWN, dispersion(kept) or 1.0
        demand = Demand(
            max(rates), *typical, mix=mix, osl_cv2=answer_cv2(self.mixes) or 0.0, dispersion=max(1.0, bursts)
        )
        evidence = {"planned_rps": max(rates), "isl": typical[0], "osl": typical[1], "isl_cv2": mix.cv2}
        evidence["dispersion"] = demand.dispersion
        recent = rate(kept, now - _fresh_s(kept))
        return Ahead(demand, evidence | ({} if recent is None else {"demand_rps": recent}))

    def to_state(self) -> dict[str, Any]:
        """JSON-able."""
        return {name: msgspec.to_builtins(list(getattr(self, name))) for name in ("slices", "mixes")}

    def load_state(self, state: dict[str, Any] | list[Any]) -> None:
        """What an older planner kept, a list, is forgotten: new windows come within minutes."""
        known = state if isinstance(state, dict) else {"slices": [], "mixes": []}
        self.slices, self.mixes = (deque(msgspec.convert(known[name], list[Slice])) for name in ("slices", "mixes"))
        self._found = None


def _keep(kept: deque[Slice], new: Slice, grain_s: float) -> None:
    last = kept[-1] if kept else None
    if last is not None and last.seconds + new.seconds <= grain_s + TOUCH_S and _follows(last, new):
        kept[-1] = together([new, last])
    else:
        kept.append(new)


def _follows(last: Slice, new: Slice) -> bool:
    return abs(last.end + new.seconds - new.end) < TOUCH_S


def for_role(ahead: Ahead, view: RoleView, traffic: TrafficObserver, held: float | None = None) -> Demand:
    """The demand as the engines of one role meet it: with cache hits, speculation and the KV that requests hold."""
    accepted = accept_length(traffic.accept_length, view)
    return replace(ahead.demand, kv_hit_rate=traffic.kv_hit_rate, accept_length=accepted, held=held)


def _measured(kept: list[Slice], startup_s: float, horizon_s: float, z: float, now: float) -> float | None:
    """Requests/s at the horizon: the mean of a while with its rise carried on, and `z` deviations of half a minute.

    The mean is of as long as a worker takes to start, within limits: what is over before then cannot be chased.
    """
    window_s = min(LONGEST_S, max(MINUTE_S, startup_s))
    recent = rate(kept, now - _fresh_s(kept))
    mean = rate(kept, now - window_s)
    if recent is None or mean is None:
        return recent
    halves = merged(kept, RECENT_S)
    wild = max(1.0, dispersion(halves) or dispersion(kept) or 1.0)
    rising = max(0.0, trend(kept, now, window_s, wild))
    return mean + rising * horizon_s + max(0.0, z) * math.sqrt(wild * mean / RECENT_S)


def _fresh_s(kept: list[Slice]) -> float:
    """How long a rate counts as the present one: half a minute, or until two windows of a slower source have failed."""
    return max(RECENT_S, 2.0 * kept[-1].seconds if kept else 0.0)


def _said(p: Prediction | None) -> tuple[float, float] | None:
    return None if p is None or p.isl is None or p.osl is None else (p.isl, p.osl)
