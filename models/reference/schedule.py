"""When the reference looks, and at what: a base tick, on which loops and plugins are due or not."""

import math
from dataclasses import dataclass

from headrace.models.reference.plugins import Registry, Stage
from headrace.models.reference.settings import Settings

TRAFFIC, FPM = "observations.traffic", "observations.fpm"
CLOSE = 1e-9  # seconds that a loop may be early


@dataclass(frozen=True, slots=True)
class Schedule:
    """A tick at `at`, which loops run on it, and what is collected for it: FPMs, traffic of `window_s` seconds.

    `full_traffic`: requests and lengths too, not the KV hits and accepted tokens alone.
    """

    at: float
    load: bool
    throughput: bool
    traffic: bool
    full_traffic: bool
    window_s: float
    fpm: bool


NEVER = Schedule(0.0, False, False, False, False, 0.0, False)


class Clock:
    """The next tick is a base tick after the last one ran: late ticks delay all that follow."""

    def __init__(self, settings: Settings, base_s: float | None) -> None:
        self.settings = settings
        self.base_s = base_s or _common(settings)
        self.planned_now = 0.0  # what plugins are told is now: when the tick was planned, not when it ran
        self.last_load = self.last_throughput = 0.0
        self.scheduled = NEVER

    def start(self, now: float, registry: Registry) -> Schedule:
        self.last_load = self.last_throughput = now
        return self._plan(now, registry)

    def advance(self, now: float, registry: Registry) -> Schedule:
        """The tick that was scheduled has run at `now`."""
        if self.scheduled.load:
            self.last_load = self.planned_now
        if self.scheduled.throughput:
            self.last_throughput = self.planned_now
        return self._plan(now, registry)

    def _plan(self, now: float, registry: Registry) -> Schedule:
        at = self.planned_now = now + self.base_s
        s = self.settings
        run_load = at - self.last_load >= s.load_adjustment_interval_seconds - CLOSE
        due = [p.plugin for stage in Stage for p in registry.due(stage, at)]
        traffic = [p for p in due if any(need.startswith(TRAFFIC) for need in p.needs)]
        self.scheduled = Schedule(
            at=at,
            load=run_load,
            throughput=s.throughput and at - self.last_throughput >= s.throughput_adjustment_interval_seconds - CLOSE,
            traffic=bool(traffic),
            full_traffic=bool(traffic) and (s.throughput or any(p.name != LOAD_ONLY for p in traffic)),
            window_s=max((p.window_s for p in traffic), default=0.0) or (self.base_s if traffic else 0.0),
            fpm=(s.sla and run_load) or any(need.startswith(FPM) for p in due for need in p.needs),
        )
        return self.scheduled


LOAD_ONLY = "builtin_load_propose"


def _common(settings: Settings) -> float:
    """The greatest common divisor of the intervals, in whole milliseconds."""
    intervals = [settings.load_adjustment_interval_seconds]
    if settings.throughput:
        intervals.append(settings.throughput_adjustment_interval_seconds)
    return math.gcd(*(round(1000 * s) for s in intervals)) / 1000
