"""The three series of load: a forecaster for each, the past that another one could learn from, and their fits."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.models.forecast.base import Forecaster, History
from headrace.models.forecast.fitting import FitJob, FitResult
from headrace.models.forecast.pack import pack_short, rounded, unpack_short
from headrace.models.forecast.registry import FORECASTERS, make_forecaster
from headrace.models.forecast.resample import resample
from headrace.schemas.config import PlannerConfig
from headrace.schemas.errors import StateError
from headrace.schemas.forecast_fit import ForecastFit

SERIES = ("rate", "isl", "osl")
PAST = 512  # values of each that are kept for another forecaster, or another interval
LONGEST_WARM_UP = 2016  # the newest windows of a trace: what a forecaster remembers


def predictor(config: PlannerConfig) -> str:
    """The forecaster that runs: where no throughput loop asks for forecasts, none needs to be installed."""
    return config.load_predictor if config.throughput_loop or config.load_predictor not in FORECASTERS else "constant"


def forecaster(config: PlannerConfig) -> Forecaster:
    """One forecaster as configured. Raises ConfigError where it is unknown or its extra missing."""
    return make_forecaster(
        predictor(config),
        log1p=config.load_predictor_log1p,
        q_level=config.kalman_q_level,
        q_trend=config.kalman_q_trend,
        r=config.kalman_r,
        min_points=config.kalman_min_points,
        window=config.prophet_window_size,
        interval_s=config.throughput_adjustment_interval_seconds,
    )


@dataclass(slots=True)
class Past:
    """What a series was, in windows of the throughput interval: enough to teach a forecaster anew."""

    history: History = field(default_factory=History)
    values: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))

    def add(self, value: float) -> None:
        if self.history.add(value):
            self.values.append(rounded(value))


@dataclass(slots=True)
class LoadSeries:
    """One value per throughput interval of each of SERIES.

    `inline`: a fit that is due is made where a forecast is asked for. Else it waits for :meth:`take_fit`, so that
    nothing here takes long. Another predictor, scale or interval begins with the past of the one before.
    """

    config: PlannerConfig
    inline: bool = True
    forecasters: dict[str, Forecaster] = field(default_factory=dict)
    past: dict[str, Past] = field(default_factory=lambda: {name: Past() for name in SERIES})
    warmed_by: str = ""  # the trace that was learned from, empty: none
    fits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("used", "unused", "failed"), 0))
    _state: dict[str, Any] | None = None  # of the forecasters, as long as they stay as they are

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.forecasters = {name: forecaster(self.config) for name in SERIES}
        self.set_inline(self.inline)

    def set_inline(self, inline: bool) -> None:
        self.inline = inline
        for made in self.forecasters.values():
            made.inline = inline

    @property
    def options(self) -> str:
        """What fits and states depend on: under other options they are of no use."""
        c = self.config
        return (
            f"{predictor(c)}, {c.throughput_adjustment_interval_seconds:g} s, window {c.prophet_window_size}"
            + ", log1p" * c.load_predictor_log1p
        )

    @property
    def empty(self) -> bool:
        """Has no request been seen yet?"""
        return self.past["rate"].history.points == 0

    def observe(self, name: str, value: float) -> None:
        self._state = None
        self.past[name].add(value)
        self.forecasters[name].observe(value)

    def forecast(self, name: str, steps: int = 1) -> float | None:
        if self.inline:
            self._state = None  # a fit that is due is made
        return self.forecasters[name].forecast(steps)

    def warm_up(self, source: str, load: Mapping[str, Sequence[float]]) -> None:
        """Learn a recorded load, oldest first; then wait for the first live request."""
        self.warmed_by = source
        for name, values in load.items():
            past = self.past[name]
            for value in values[-LONGEST_WARM_UP:]:
                past.add(value)
            past.history.idle = True
            self._teach(name, values[-LONGEST_WARM_UP:])

    def _teach(self, name: str, values: Sequence[float]) -> None:
        """Fits are not made on the way: those that are due at the end are due then."""
        self._state = None
        made = self.forecasters[name]
        made.inline = False
        for value in values:
            made.observe(value)
        made.inline = self.inline
        if self.past[name].history.idle:
            made.rearm()

    # -- fits --------------------------------------------------------------------------------------------------------

    def fit_jobs(self) -> list[tuple[str, FitJob]]:
        """Those that are due, with the name of their series; empty while nothing has changed."""
        return [(name, job) for name, made in self.forecasters.items() for job in made.fit_jobs()]

    def take_fit(self, fit: ForecastFit) -> str | None:
        """Take in a fit, if it is of use: not a repeat, not stale, not of other options. Returns what to say, or None.

        Raises RecordError, with nothing changed, where its values cannot be those of such a fit.
        """
        made = self.forecasters.get(fit.series)
        result = FitResult(fit.kind, fit.at, fit.newest, fit.values, fit.failure)
        if made is None or fit.options != self.options or not made.take_fit(result):
            self.fits["unused"] += 1
            return None
        self._state = None
        if fit.values is not None:
            self.fits["used"] += 1
            return None
        self.fits["failed"] += 1
        return f"the fit of {fit.kind} to {fit.series} failed, and the one before it stays: {fit.failure}"

    # -- state -------------------------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        if self._state is None:  # thousands of characters that change once in an interval, and are saved every tick
            self._state = {name: made.to_state() for name, made in self.forecasters.items()} | {
                "past": {
                    name: [p.history.to_state(), pack_short(np.array(p.values, dtype=np.float64))]
                    for name, p in self.past.items()
                }
            }
        return self._state | {
            "options": self.options,
            "predictor": predictor(self.config),
            "interval_s": self.config.throughput_adjustment_interval_seconds,
            "inline": self.inline,
            "warmed_by": self.warmed_by,
            "fits": dict(self.fits),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore. What the configured forecaster cannot read, it learns anew from the past."""
        self.warmed_by = state["warmed_by"]
        self.fits |= {name: int(count) for name, count in state["fits"].items()}
        self.set_inline(bool(state["inline"]))
        own_s = self.config.throughput_adjustment_interval_seconds
        for name, (history, values) in state["past"].items():
            found = resample(unpack_short(values).tolist(), float(state["interval_s"]), own_s, PAST)
            self.past[name] = Past(History.from_state(history), deque(found, maxlen=PAST))
        if state["options"] == self.options:
            try:
                for name, made in self.forecasters.items():
                    made.load_state(state[name])
                return
            except StateError:
                self._begin()
        for name, past in self.past.items():
            self._teach(name, list(past.values))
