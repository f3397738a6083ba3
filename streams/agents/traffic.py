"""Observe traffic: windows become one observation per throughput interval, and nothing is counted twice."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.models.known import Known, Unknown
from headrace.schemas.traffic import Distribution, TrafficWindow

LEAST_COVERAGE = 0.5  # of an interval that must be known before its rate is believed
LONGEST_WINDOW_S = 3600.0  # longer is a start that nobody set; its rate would look like idleness
LATEST_S = 1800.0  # a window that ended longer ago is not counted any more
REMEMBERED_IDS = 256
_SHOWN = 120  # characters of a foreign text in a report
_FIELDS = frozenset(TrafficWindow.__struct_fields__)


@dataclass(frozen=True, slots=True)
class Observation:
    """Traffic over one interval: `requests_per_s` arrivals; means, None when nothing arrived or nobody measured it.

    Lengths are tokens; TTFT, ITL and the duration of requests are seconds.
    """

    requests: int
    seconds: float
    isl: float | None
    osl: float | None
    ttft_s: float | None = None
    itl_s: float | None = None
    duration_s: float | None = None

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds


class Interval(msgspec.Struct):
    """What the windows of one interval add up to; of constant size."""

    windows: int = 0
    known_s: float = 0.0  # of windows whose arrivals are known
    requests: int = 0
    isl_count: int = 0
    isl_sum: float = 0.0  # tokens
    osl_count: int = 0
    osl_sum: float = 0.0  # tokens
    ttft: tuple[int, float] = (0, 0.0)  # count and sum, seconds
    itl: tuple[int, float] = (0, 0.0)
    duration: tuple[int, float] = (0, 0.0)
    why: str = "too few windows"  # arrivals of a window were unknown

    def add(self, w: TrafficWindow) -> None:
        self.windows += 1
        if w.requests is None:
            self.why = w.unknown.get("requests", "arrivals unknown")[:_SHOWN]
            return
        self.known_s += w.end - w.start
        self.requests += w.requests
        isl, osl = _measured(w.isl), _measured(w.osl)
        self.isl_count, self.isl_sum = self.isl_count + isl[0], self.isl_sum + isl[0] * isl[1]
        self.osl_count, self.osl_sum = self.osl_count + osl[0], self.osl_sum + osl[0] * osl[1]
        self.ttft, self.itl = _plus(self.ttft, w.ttft_s), _plus(self.itl, w.itl_s)
        self.duration = _plus(self.duration, w.duration_s)

    def close(self, seconds: float) -> Known[Observation] | Unknown:
        """One observation of an interval of `seconds`.

        Unknown when no window came, when less than half of the interval is known, or when requests arrived whose
        lengths nobody measured: a rate without lengths sizes nothing, and a guess would be a zero in disguise.
        """
        if not self.windows:
            return Unknown("no traffic window has come in this interval")
        if self.known_s < LEAST_COVERAGE * seconds:
            return Unknown(f"only {self.known_s:.0f} s of {seconds:.0f} s are known: {self.why}")
        if not self.requests:
            return Known(Observation(0, self.known_s, None, None))
        if not self.isl_count or not self.osl_count:
            return Unknown(f"{self.requests} requests arrived, but their input or output lengths are unknown")
        lengths = (self.isl_sum / self.isl_count, self.osl_sum / self.osl_count)
        times = (_mean(self.ttft), _mean(self.itl), _mean(self.duration))
        return Known(Observation(self.requests, self.known_s, *lengths, *times))


@dataclass(slots=True)
class TrafficObserver:
    """Windows of one DGD. A window id counts once; sources that overlap in time are the operator's to avoid."""

    max_skew_s: float
    interval: Interval = field(default_factory=Interval)  # since the last throughput interval ended
    newest_end: float | None = None  # seconds, as far as the source's clock is believed
    numbers: dict[str, float] = field(default_factory=dict)  # of the newest window, for the report
    missing: dict[str, str] = field(default_factory=dict)  # what the newest window does not know, and why
    ids: dict[str, float] = field(default_factory=dict)  # window id -> end, in the order of arrival
    forgotten_to: float = 0.0  # ids of windows that ended up to here may have been forgotten
    kv_hit_rate: float | None = None  # last valid
    accept_length: float | None = None  # last valid
    seen: int = 0  # windows that were counted
    duplicates: int = 0
    unknown: str | None = "the throughput loop has not run yet"  # why the last interval is, if it is

    def handle(self, window: TrafficWindow, now: float) -> str | None:
        """Take a window in. Returns why it was not used, or None.

        A late window counts in the interval in which it comes: rates are per second of known time, so it spoils none.
        """
        if window.window_id in self.ids:
            self.duplicates += 1
            return None
        lasts = window.end - window.start
        if not 0 < lasts <= LONGEST_WINDOW_S:
            return f"{_name(window)} lasts {lasts:g} s: more than 0 and at most {LONGEST_WINDOW_S:g} are believed"
        if window.end < now - LATEST_S or window.end <= self.forgotten_to:
            return f"{_name(window)} ended {now - window.end:.0f} s ago: too late, or the clock of its source is wrong"
        # A clock ahead must not outshine what follows.
        end = float(window.end if window.end <= now + self.max_skew_s else now)
        self._remember(window.window_id, end)
        self.seen += 1
        self.interval.add(window)
        if self.newest_end is None or end >= self.newest_end:
            self.newest_end = end
            self._show(window)
        return None

    def _remember(self, window_id: str, end: float) -> None:
        self.ids[window_id] = end
        while len(self.ids) > REMEMBERED_IDS:
            self.forgotten_to = max(self.forgotten_to, self.ids.pop(next(iter(self.ids))))

    def _show(self, w: TrafficWindow) -> None:
        if w.kv_hit_rate is not None:
            self.kv_hit_rate = w.kv_hit_rate
        if w.accept_length is not None:
            self.accept_length = w.accept_length
        values = {
            "requests_per_s": None if w.requests is None else w.requests / (w.end - w.start),
            "isl": w.isl.mean if w.isl else None,
            "osl": w.osl.mean if w.osl else None,
            "ttft_ms": None if w.ttft_s is None or w.ttft_s.mean is None else 1000 * w.ttft_s.mean,
            "itl_ms": None if w.itl_s is None or w.itl_s.mean is None else 1000 * w.itl_s.mean,
            "kv_hit_rate": w.kv_hit_rate,
            "accept_length": w.accept_length,
            "window_s": w.end - w.start,
            "window_end": w.end,
        }
        self.numbers = {name: float(value) for name, value in values.items() if value is not None}
        self.missing = {name: why[:_SHOWN] for name, why in sorted(w.unknown.items()) if name in _FIELDS}

    def begin_interval(self) -> None:
        """Forget what has come since the last interval; when nobody has been asking for it."""
        self.interval = Interval()

    def close_interval(self, seconds: float) -> Known[Observation] | Unknown:
        """The traffic since the last call, as one observation of an interval of `seconds`; then begin anew."""
        seen = self.interval.close(seconds)
        self.begin_interval()
        self.unknown = seen.why if isinstance(seen, Unknown) else None
        return seen

    def shown(self, now: float, within_s: float) -> tuple[dict[str, float], dict[str, str]]:
        """The newest window for a report: what it knows, what it does not and why. Older than `within_s` is unknown."""
        if self.newest_end is None:
            return {}, {"load": "no traffic window has come"}
        if now - self.newest_end > within_s:
            return {}, {"load": f"the newest traffic window ended {now - self.newest_end:.0f} s ago"}
        return dict(self.numbers), dict(self.missing)

    def to_state(self) -> dict[str, Any]:
        return {
            "interval": msgspec.to_builtins(self.interval),
            "newest_end": self.newest_end,
            "numbers": self.numbers,
            "missing": self.missing,
            "ids": list(self.ids.items()),
            "forgotten_to": self.forgotten_to,
            "kv_hit_rate": self.kv_hit_rate,
            "accept_length": self.accept_length,
            "seen": self.seen,
            "duplicates": self.duplicates,
            "unknown": self.unknown,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.interval = msgspec.convert(state["interval"], Interval)
        self.newest_end, self.forgotten_to = state["newest_end"], float(state["forgotten_to"])
        self.numbers, self.missing = state["numbers"], state["missing"]
        self.ids = {window_id: float(end) for window_id, end in state["ids"]}
        self.kv_hit_rate = state["kv_hit_rate"]
        self.accept_length = state["accept_length"]
        self.seen = state.get("seen", 0)  # snapshots before it was counted
        self.duplicates = state["duplicates"]
        self.unknown = state["unknown"]


def _measured(d: Distribution | None) -> tuple[int, float]:
    """How many values a distribution counted, and their mean; (0, 0.0) when it says nothing."""
    return (0, 0.0) if d is None or not d.count or d.mean is None else (d.count, d.mean)


def _plus(so_far: tuple[int, float], d: Distribution | None) -> tuple[int, float]:
    count, mean = _measured(d)
    return so_far[0] + count, so_far[1] + count * mean


def _mean(counted: tuple[int, float]) -> float | None:
    return counted[1] / counted[0] if counted[0] else None


def _name(window: TrafficWindow) -> str:
    return f"traffic window {window.window_id[:_SHOWN]} of {window.source[:_SHOWN]}"
