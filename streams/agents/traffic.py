"""Observe traffic: windows become one observation per throughput interval, and nothing is counted twice."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.models.known import Known, Unknown
from headrace.schemas.traffic import Distribution, TrafficWindow

LEAST_COVERAGE = 0.5  # of an interval that must be known before its rate is believed
REMEMBERED_IDS = 4096


@dataclass(frozen=True, slots=True)
class Observation:
    """Traffic over one interval: `requests_per_s` arrivals; mean lengths in tokens, None when nothing arrived."""

    requests: int
    seconds: float
    isl: float | None
    osl: float | None

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds


@dataclass(slots=True)
class TrafficObserver:
    """Windows of one DGD. A window id counts once; sources that overlap in time are the operator's to avoid."""

    pending: list[TrafficWindow] = field(default_factory=list)  # since the last throughput interval ended
    recent: deque[TrafficWindow] = field(default_factory=lambda: deque(maxlen=8))  # for what is shown
    ids: dict[str, None] = field(default_factory=dict)  # insertion order = age
    kv_hit_rate: float | None = None  # last valid
    accept_length: float | None = None  # last valid
    duplicates: int = 0
    unknown: str | None = "the throughput loop has not run yet"  # why the last interval is, if it is

    def handle(self, window: TrafficWindow) -> str | None:
        """Take a window in. Returns why it was not used, or None."""
        if window.window_id in self.ids:
            self.duplicates += 1
            return None
        self.ids[window.window_id] = None
        while len(self.ids) > REMEMBERED_IDS:
            del self.ids[next(iter(self.ids))]
        if window.end <= window.start:
            return f"traffic window {window.window_id} ends at {window.end:g}, not after its start {window.start:g}"
        self.recent.append(window)
        self.pending.append(window)
        if window.kv_hit_rate is not None:
            self.kv_hit_rate = window.kv_hit_rate
        if window.accept_length is not None:
            self.accept_length = window.accept_length
        return None

    def close_interval(self, seconds: float) -> Known[Observation] | Unknown:
        """The traffic since the last call, as one observation of an interval of `seconds`; then begin anew.

        Unknown when no window came, when less than half of the interval is known, or when requests arrived whose
        lengths nobody measured: a rate without lengths sizes nothing, and a guess would be a zero in disguise.
        """
        seen = self._observe(seconds)
        self.unknown = seen.why if isinstance(seen, Unknown) else None
        return seen

    def _observe(self, seconds: float) -> Known[Observation] | Unknown:
        windows, self.pending = self.pending, []
        if not windows:
            return Unknown("no traffic window has come in this interval")
        known = [w for w in windows if w.requests is not None]
        covered = sum(w.end - w.start for w in known)
        if covered < LEAST_COVERAGE * seconds:
            why = next((w.unknown.get("requests", "arrivals unknown") for w in windows if w.requests is None), "too few windows")
            return Unknown(f"only {covered:.0f} s of {seconds:.0f} s are known: {why}")
        requests = sum(w.requests or 0 for w in known)
        isl, osl = _mean([w.isl for w in known]), _mean([w.osl for w in known])
        if requests > 0 and (isl is None or osl is None):
            return Unknown(f"{requests} requests arrived, but their input or output lengths are unknown")
        return Known(Observation(requests, covered, isl if requests else None, osl if requests else None))

    def shown(self) -> dict[str, float]:
        """The newest window's numbers for a report; what it does not know is absent."""
        if not self.recent:
            return {}
        w = self.recent[-1]
        values = {
            "requests_per_s": None if w.requests is None else w.requests / (w.end - w.start),
            "isl": w.isl.mean if w.isl else None,
            "osl": w.osl.mean if w.osl else None,
            "ttft_ms": None if w.ttft_s is None or w.ttft_s.mean is None else 1000 * w.ttft_s.mean,
            "itl_ms": None if w.itl_s is None or w.itl_s.mean is None else 1000 * w.itl_s.mean,
            "window_s": w.end - w.start,
            "window_end": w.end,
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_state(self) -> dict[str, Any]:
        return {
            "pending": msgspec.to_builtins(self.pending),
            "recent": msgspec.to_builtins(list(self.recent)[-1:]),
            "ids": list(self.ids)[-512:],
            "kv_hit_rate": self.kv_hit_rate,
            "accept_length": self.accept_length,
            "duplicates": self.duplicates,
            "unknown": self.unknown,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.pending = msgspec.convert(state["pending"], list[TrafficWindow])
        self.recent.extend(msgspec.convert(state["recent"], list[TrafficWindow]))
        self.ids = dict.fromkeys(state["ids"])
        self.kv_hit_rate = state["kv_hit_rate"]
        self.accept_length = state["accept_length"]
        self.duplicates = state["duplicates"]
        self.unknown = state["unknown"]


def _mean(parts: list[Distribution | None]) -> float | None:
    """The mean over windows, weighted by what each counted; None when none counted anything."""
    counted = [(d.count, d.mean) for d in parts if d is not None and d.count and d.mean is not None]
    total = sum(n for n, _ in counted)
    return sum(n * mean for n, mean in counted) / total if total else None
