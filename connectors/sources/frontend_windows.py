"""From readings of several frontends to traffic windows of their DGD. Pure: the scraper brings readings and the time.

* A window reaches from one round of scrapes to the next; requests are sums over frontends, means are weighted by
  counts.
* If any frontend could not be read, the window's numbers are unknown. The next round in which all are read gives a
  window that begins where the last known one ended, so that no arrival is lost; it says so under `unknown["gap"]`.
* The first reading of a frontend is a baseline: what it counted before we came is not ours.
* A frontend that was restarted since its last reading counts from zero; another process behind its address does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.connectors.sources.counters import (
    NOTHING,
    Histogram,
    distribution,
    mean,
    merge,
    total_histogram_increase,
    total_increase,
)
from headrace.connectors.sources.frontend_page import FIELDS, KV_HIT_RATE, Reading
from headrace.connectors.sources.prom_text import Labels
from headrace.schemas.errors import ConfigError
from headrace.schemas.traffic import TrafficWindow

COUNTED = (*FIELDS, KV_HIT_RATE)
LONGEST_NAME = 200  # a window's id is this and two times
CLOCK_SLACK_S = 5.0  # how late after its round's start a page may have been written


class Since(Enum):
    """What a reading's totals are to be compared with."""

    LAST_READING = "last reading"
    ZERO = "zero"  # the process began after the last reading
    NOWHERE = "nowhere"  # another process, which has counted for longer than we know


@dataclass(slots=True)
class _Frontend:
    reading: Reading | None = None
    at: float = 0.0  # of `reading`, s


@dataclass(slots=True)
class _Sums:
    """What was added since the last known window ended."""

    requests: float = 0.0
    histograms: dict[str, Histogram] = field(default_factory=lambda: dict.fromkeys(COUNTED, NOTHING))
    unknown: dict[str, str] = field(default_factory=dict)  # field -> why
    routed: bool = False  # some frontend has a KV router
    completions: set[str] = field(default_factory=set)  # frontends that do not count arrivals


class FrontendWindows:
    """The windows of one DGD, whose frontends are `addresses`."""

    def __init__(self, dgd: str, source: str, addresses: Sequence[str]) -> None:
        if not addresses:
            raise ConfigError(
                f"source {source!r} of {dgd} has no frontend to scrape: give at least one /metrics address"
            )
        if len(source) > LONGEST_NAME:
            raise ConfigError(f"the source name {source[:20]!r}... has {len(source)} letters: {LONGEST_NAME} at most")
        if len(set(addresses)) != len(addresses):
            raise ConfigError(f"source {source!r} of {dgd} names a frontend twice, so its requests would count double")
        self.dgd = dgd
        self.source = source
        self.addresses = tuple(addresses)
        self._frontends = {address: _Frontend() for address in addresses}
        self._start: float | None = None  # the last round after which everything is known
        self._round_at: float | None = None
        self._sums = _Sums()

    def round(self, at: float, readings: Mapping[str, Reading | str]) -> TrafficWindow | None:
        """The window that ends with this round of scrapes, at `at` (s).

        A string in place of a reading says why there is none. Returns None for the first round, and when the clock has
        gone backwards: then this round is a new beginning.
        """
        if self._round_at is not None and at <= self._round_at:
            self._forget()
        previous, self._round_at = self._round_at, at
        failures: dict[str, str] = {}
        broken = self._start is None
        for address, frontend in self._frontends.items():
            reading = readings.get(address, "not scraped")
            if isinstance(reading, str):
                failures[address] = reading
            elif not self._advance(address, frontend, reading, at):
                broken = True
        if broken:
            self._start, self._sums = (None if failures else at), _Sums()
            failures = failures or {"counts": _broken_why(readings)}
        if previous is None:
            return None
        if failures:
            return self._unknown(previous, at, failures)
        assert self._start is not None
        window = self._known(self._start, previous, at)
        self._start, self._sums = at, _Sums()
        return window

    def _advance(self, address: str, frontend: _Frontend, now: Reading, at: float) -> bool:
        """Add what a frontend counted since its last reading; false when that cannot be known."""
        before, elapsed = frontend.reading, at - frontend.at
        frontend.reading, frontend.at = now, at
        match since(before, now, elapsed):
            case Since.LAST_READING:
                self._add(address, before, now)
            case Since.ZERO:
                self._add(address, None, now)
            case Since.NOWHERE:
                return False
        return True

    def _add(self, address: str, before: Reading | None, now: Reading) -> None:
        sums = self._sums
        sums.requests += total_increase(_comparable(before, now), now.arrivals)
        if now.started is None:
            sums.completions.add(address)
        for name in COUNTED:
            if name in now.unreadable:
                sums.unknown[name] = f"{address}: {now.unreadable[name]}"
            elif before is not None and name not in before.histograms:
                sums.unknown[name] = f"{address}: unreadable where the window begins: {before.unreadable[name]}"
            else:
                earlier = before.histograms[name] if before is not None else {}
                added = total_histogram_increase(earlier, now.histograms[name])
                sums.histograms[name] = merge((sums.histograms[name], added))
        sums.routed = sums.routed or bool(now.histograms.get(KV_HIT_RATE))

    def _forget(self) -> None:
        self._frontends = {address: _Frontend() for address in self.addresses}
        self._start, self._round_at, self._sums = None, None, _Sums()

    def _unknown(self, start: float, end: float, failures: Mapping[str, str]) -> TrafficWindow:
        why = "; ".join(f"{address}: {reason}" for address, reason in failures.items())
        return TrafficWindow(
            dgd=self.dgd,
            window_id=self._window_id(start, end),
            source=self.source,
            start=start,
            end=end,
            requests=None,
            unknown=dict.fromkeys(("requests", *COUNTED), why),
        )

    def _known(self, start: float, previous: float, end: float) -> TrafficWindow:
        sums, unknown = self._sums, dict(self._sums.unknown)
        rate = None if KV_HIT_RATE in unknown else mean(sums.histograms[KV_HIT_RATE])
        if rate is None:
            unknown.setdefault(KV_HIT_RATE, "nothing was routed" if sums.routed else "no frontend has a KV router")
        if start < previous:
            unknown["gap"] = f"spans {end - start:.1f} s, because not all frontends could be read in between"
        if sums.completions:
            named = ", ".join(sorted(sums.completions))
            unknown["arrivals"] = (
                f"completions were counted, which overload hides: no requests_started_total at {named}"
            )
        counted = {name: distribution(sums.histograms[name]) for name in FIELDS if name not in unknown}
        return TrafficWindow(
            dgd=self.dgd,
            window_id=self._window_id(start, end),
            source=self.source,
            start=start,
            end=end,
            requests=round(sums.requests),
            isl=counted.get("isl"),
            osl=counted.get("osl"),
            ttft_s=counted.get("ttft_s"),
            itl_s=counted.get("itl_s"),
            duration_s=counted.get("duration_s"),
            kv_hit_rate=None if rate is None else min(rate, 1.0),
            unknown=unknown,
        )

    def _window_id(self, start: float, end: float) -> str:
        return f"{self.source}/{start:.3f}-{end:.3f}"


def since(before: Reading | None, now: Reading, elapsed_s: float) -> Since:
    """What `now` continues, `elapsed_s` after `before`.

    Where a page tells no uptime, or tells several, the counters themselves show a restart, series by series.
    """
    if before is None:
        return Since.NOWHERE
    if before.uptime_s is None or now.uptime_s is None:
        return Since.LAST_READING
    if now.process == before.process and now.uptime_s >= before.uptime_s:
        return Since.LAST_READING
    return Since.ZERO if now.uptime_s <= elapsed_s + CLOCK_SLACK_S else Since.NOWHERE


def _broken_why(readings: Mapping[str, Reading | str]) -> str:
    return (
        f"no continuous count of all {len(readings)} frontends: one was read for the first time, or another process "
        "answered (if an address is a load balancer's, name the frontends behind it one by one)"
    )


def _comparable(before: Reading | None, now: Reading) -> Mapping[Labels, float]:
    """The earlier values of the counter that `now.arrivals` is."""
    if before is None:
        return {}
    return before.completed if now.started is None else before.started or {}
