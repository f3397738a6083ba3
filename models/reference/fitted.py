"""Forecasts that are fitted: arima and prophet, each fitted where it is asked for, on the spot."""

import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.models.forecast.arima_fit import UNFIT
from headrace.models.forecast.base import exp1m, log_of
from headrace.models.forecast.extras import need
from headrace.models.forecast.prophet import ProphetFit
from headrace.models.reference.predictors import Model
from headrace.models.reference.settings import Settings
from headrace.schemas.errors import ConfigError

MIN_POINTS = 5


def make_fitted(settings: Settings) -> Model:
    """Raises ConfigError for a predictor that the reference does not have."""
    if settings.load_predictor == "arima":
        return Arima(log1p=settings.load_predictor_log1p)
    if settings.load_predictor == "prophet":
        return Prophet(
            settings.prophet_window_size,
            settings.throughput_adjustment_interval_seconds,
            log1p=settings.load_predictor_log1p,
        )
    raise ConfigError(
        f"load_predictor {settings.load_predictor!r} is not one of the reference planner's: it has constant, arima, "
        "kalman and prophet"
    )


class Arima:
    """The order that the first five values suggest, for ever; parameters are refitted as values come.

    Where raw values suggest p = q = 0, so that no value predicts the next one, it changes to logarithms for good.
    """

    def __init__(self, *, log1p: bool) -> None:
        need("pmdarima", "arima")
        self.log1p = log1p
        self.model: Any = None
        self._history: list[float] = []
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        self._history.append(max(0.0, value))
        self._pending.append(value)

    def predict(self, last: float) -> float:
        if len(self._history) < MIN_POINTS:
            return last
        if len(set(self._history)) == 1:
            return self._history[0]
        from threadpoolctl import threadpool_limits  # comes with pmdarima

        pending, self._pending = self._pending, []
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            try:
                if self.model is None:
                    self._select()
                elif pending:
                    self.model.update(np.array([log_of(max(0.0, v), self.log1p) for v in pending]))
                ahead = float(np.asarray(self.model.predict(n_periods=1))[0])
            except UNFIT:
                return last
        return max(0.0, exp1m(ahead) if self.log1p else ahead)

    def to_state(self) -> dict[str, Any]:
        """Values alone: what was fitted to them is fitted anew."""
        return {"history": self._history}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._history, self._pending, self.model = list(state["history"]), [], None

    def _select(self) -> None:
        self.model = self._auto(self.log1p)
        p, _, q = self.model.order
        if not self.log1p and p == q == 0:
            try:
                self.model = self._auto(True)
            except UNFIT:
                return
            self.log1p = True

    def _auto(self, log1p: bool) -> Any:
        from pmdarima import auto_arima  # 2 s: only where fits are made

        return auto_arima([log_of(v, log1p) for v in self._history], suppress_warnings=True, error_action="ignore")


class Prophet:
    """Prophet with its defaults over the last values, fitted anew for every forecast."""

    def __init__(self, window: int, interval_s: float, *, log1p: bool) -> None:
        need("prophet", "prophet")
        self._values: deque[float] = deque(maxlen=window)
        self._points = 0
        self._interval_s, self._log1p = interval_s, log1p

    def to_state(self) -> dict[str, Any]:
        return {"values": list(self._values), "points": self._points}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._values, self._points = deque(state["values"], maxlen=self._values.maxlen), state["points"]

    def add(self, value: float) -> None:
        self._values.append(value)
        self._points += 1

    def predict(self, last: float) -> float:
        if len(self._values) < MIN_POINTS:
            return last
        seen = tuple(log_of(max(0.0, v), self._log1p) for v in self._values)
        start_s = (self._points - len(self._values)) * self._interval_s
        found = ProphetFit(self._points, seen, start_s, self._interval_s, 1, seen[-1]).run()
        if found.values is None:
            return last
        ahead = float(found.values["path"][0])
        return max(0.0, exp1m(ahead) if self._log1p else ahead)
