"""Forecasts of one series, as the reference makes them: nothing is clamped that it does not clamp."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.models.forecast.base import exp1m
from headrace.models.reference.settings import Settings

FIRST_VARIANCE = 1000.0
STEP = np.array([[1.0, 1.0], [0.0, 1.0]])  # level and trend a window later
SEES = np.array([[1.0, 0.0]])  # the level


class Model(Protocol):
    """A predictor behind the rule of leading idle."""

    def add(self, value: float) -> None: ...

    def predict(self, last: float) -> float: ...

    def to_state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class Series:
    """Leading zeros are no values, and what is no number is a zero."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._idle = True
        self.last = 0.0
        self.points = 0

    def add(self, value: float) -> None:
        value = 0.0 if math.isnan(value) else float(value)
        if value == 0.0 and self._idle:
            return
        self._idle = False
        self.last = value
        self.points += 1
        self._model.add(value)

    def predict(self) -> float:
        """0 before the first value."""
        return self._model.predict(self.last) if self.points else 0.0

    def rearm(self) -> None:
        """After a warm-up, zeros are leading idle again."""
        self._idle = True

    def to_state(self) -> dict[str, Any]:
        return {"idle": self._idle, "last": self.last, "points": self.points, "model": self._model.to_state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._idle, self.last, self.points = state["idle"], state["last"], state["points"]
        self._model.load_state(state["model"])


class Constant:
    def add(self, value: float) -> None:
        """Whoever keeps the last value keeps this one."""

    def predict(self, last: float) -> float:
        return last

    def to_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing is its own."""


class Kalman:
    """Level and trend. Its forecast may be negative, and with `log1p` any multiple of what was seen.

    Covariances in Joseph's form, term by term as filterpy computes them: variances near zero show the difference.
    """

    def __init__(self, q_level: float, q_trend: float, r: float, *, log1p: bool) -> None:
        self._q = np.diag([max(1e-12, q_level), max(1e-12, q_trend)])
        self._r = np.array([[max(1e-9, r)]])
        self._log1p = log1p
        self._x: NDArray[np.float64] | None = None  # level, trend
        self._p = FIRST_VARIANCE * np.eye(2)

    def add(self, value: float) -> None:
        seen = math.log1p(max(0.0, value)) if self._log1p else value
        if self._x is None:
            self._x = np.array([[seen], [0.0]])
            return
        x, p = STEP @ self._x, STEP @ self._p @ STEP.T + self._q
        gain = p @ SEES.T @ np.linalg.inv(SEES @ p @ SEES.T + self._r)
        kept = np.eye(2) - gain @ SEES
        self._x = x + gain @ (seen - SEES @ x)
        self._p = kept @ p @ kept.T + gain @ self._r @ gain.T

    def predict(self, last: float) -> float:
        assert self._x is not None
        level = float((STEP @ self._x)[0, 0])
        return max(0.0, exp1m(level)) if self._log1p else level

    def to_state(self) -> dict[str, Any]:
        return {"x": None if self._x is None else self._x.tolist(), "p": self._p.tolist()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._x = None if state["x"] is None else np.array(state["x"], dtype=np.float64).reshape(2, 1)
        self._p = np.array(state["p"], dtype=np.float64).reshape(2, 2)


def make_series(settings: Settings) -> Series:
    """The configured one. `arima` and `prophet` need the extra of that name; raises ConfigError without it."""
    log1p = settings.load_predictor_log1p
    if settings.load_predictor == "kalman":
        return Series(Kalman(settings.kalman_q_level, settings.kalman_q_trend, settings.kalman_r, log1p=log1p))
    if settings.load_predictor == "constant":
        return Series(Constant())
    from headrace.models.reference.fitted import make_fitted  # with what is slow to import

    return Series(make_fitted(settings))
