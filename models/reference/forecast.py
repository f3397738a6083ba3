"""The reference's stage PREDICT: its own forecast of the load, and the chain of those who forecast."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from headrace.models.reference.predictors import Series, make_series
from headrace.models.reference.settings import Settings, Traffic


@dataclass(frozen=True, slots=True)
class Prediction:
    """`num_req` is of one throughput window. None: no opinion."""

    num_req: float | None = None
    isl: float | None = None
    osl: float | None = None
    kv_hit_rate: float | None = None
    accept_length: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one plugin of the chain says."""

    source: str
    priority: int
    prediction: Prediction | None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Chained:
    """`calls`: who was asked, and what had been said before them."""

    prediction: Prediction | None
    final_from: str
    calls: tuple[tuple[str, Prediction | None], ...]
    broken: bool  # it was ended by another than the one of the smallest priority


def chain(forecasts: Sequence[Forecast]) -> Chained:
    """By priority; who says something first is right, and a `final` ends it."""
    merged: Prediction | None = None
    calls: list[tuple[str, Prediction | None]] = []
    for forecast in sorted(forecasts, key=lambda f: f.priority):
        calls.append((forecast.source, merged))
        if forecast.prediction is not None:
            merged = _first(merged, forecast.prediction)
        if forecast.final:
            least = min(f.priority for f in forecasts)
            return Chained(merged, forecast.source, tuple(calls), forecast.priority > least)
    return Chained(merged, "", tuple(calls), False)


def _first(merged: Prediction | None, more: Prediction) -> Prediction:
    if merged is None:
        return more
    missing = {f.name: getattr(more, f.name) for f in fields(Prediction) if getattr(merged, f.name) in (None, "")}
    return replace(merged, **missing)


def clamp_accept(accept_length: float | None, nextn: int) -> float:
    """Tokens per decode step; 1 where nothing is guessed."""
    if nextn <= 0 or accept_length is None or not math.isfinite(accept_length):
        return 1.0
    return min(max(accept_length, 1.0), nextn + 1.0)


class LoadForecast:
    """Requests and their lengths, a window after the other; KV hits and accepted tokens as they were last seen."""

    def __init__(self, settings: Settings) -> None:
        self.num_req, self.isl, self.osl = (make_series(settings) for _ in range(3))
        self.live = False
        self.lengths = 0.0, 0.0  # of the last window with requests
        self.kv_hit_rate: float | None = None
        self.accept_length: float | None = None

    def warm_up(self, windows: Iterable[Traffic]) -> None:
        """Learn from a recorded load; then wait for the first live request."""
        for window in windows:
            self._learn(window)
        self.live = False
        for series in self._series:
            series.rearm()

    @property
    def _series(self) -> tuple[Series, Series, Series]:
        return self.num_req, self.isl, self.osl

    def observe(self, traffic: Traffic) -> None:
        self._learn(traffic)
        self.note_rates(traffic)

    def note_rates(self, traffic: Traffic) -> None:
        """Unknown rates leave those that were last known."""
        if traffic.kv_hit_rate is not None and not math.isnan(traffic.kv_hit_rate):
            self.kv_hit_rate = traffic.kv_hit_rate
        if traffic.accept_length is not None and math.isfinite(traffic.accept_length):
            self.accept_length = traffic.accept_length

    def _learn(self, traffic: Traffic) -> None:
        self.num_req.add(traffic.num_req)
        lengths = traffic.isl, traffic.osl
        if traffic.num_req > 0:
            self.live = True
            isl, osl = (new if math.isfinite(new) else old for new, old in zip(lengths, self.lengths, strict=True))
            self.lengths = isl, osl
        elif traffic.num_req == 0 and self.live:
            lengths = self.lengths  # of an idle window are none: those of the last request stand in
        for series, value in zip((self.isl, self.osl), lengths, strict=True):
            if math.isfinite(value):
                series.add(value)

    def to_state(self) -> dict[str, Any]:
        """What was learned, for JSON."""
        return {
            "series": [series.to_state() for series in self._series],
            "live": self.live,
            "lengths": list(self.lengths),
            "rates": [self.kv_hit_rate, self.accept_length],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError where it is none of `to_state`."""
        for series, saved in zip(self._series, state["series"], strict=True):
            series.load_state(saved)
        isl, osl = state["lengths"]
        self.live, self.lengths = state["live"], (isl, osl)
        self.kv_hit_rate, self.accept_length = state["rates"]

    def predict(self, nextn: int) -> Prediction:
        return Prediction(
            num_req=self.num_req.predict(),
            isl=self.isl.predict(),
            osl=self.osl.predict(),
            kv_hit_rate=self.kv_hit_rate,
            accept_length=clamp_accept(self.accept_length, nextn),
        )
