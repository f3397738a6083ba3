"""A Kalman filter over level and trend: follows a ramp, and smooths what is only noise. Uses filterpy."""

import math
from typing import Any

import numpy as np

from headrace.models.forecast.base import History, Light, ahead, damaged, exp1m
from headrace.schemas.errors import ConfigError

FIRST_VARIANCE = 1000.0  # of level and trend, before anything was learned


class Kalman(Light):
    """Local linear trend: level' = level + trend, both disturbed (reference-semantics 4.4).

    `q_level` and `q_trend` are the variances of the disturbances, `r` of the measurement; only their ratios and the
    initial 1000 matter, so the forecast scales with the series. Until `min_points` values the last one is the forecast.
    With `log1p` the filter sees log(1 + value): growth is then a factor, not a step.

    Raises ConfigError where filterpy is not installed or an option is out of range.

    >>> kalman = Kalman()
    >>> for value in [10, 20, 30, 40, 50, 60]:
    ...     kalman.observe(value)
    >>> round(kalman.forecast(), 3), round(kalman.forecast(3), 3)
    (69.968, 89.945)
    """

    def __init__(
        self,
        *,
        q_level: float = 1.0,
        q_trend: float = 0.1,
        r: float = 10.0,
        min_points: int = 5,
        log1p: bool = False,
    ) -> None:
        for name, value in (("kalman_q_level", q_level), ("kalman_q_trend", q_trend), ("kalman_r", r)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} ({value}) is a variance: give a finite number >= 0")
        if min_points < 1:
            raise ConfigError(
                f"kalman_min_points ({min_points}) must be at least 1: there is no forecast without a value"
            )
        self._history = History()
        self._min_points = min_points
        self._log1p = log1p
        self._filter = _filter(q_level, q_trend, r)

    def observe(self, value: float) -> None:
        if not self._history.add(value):
            return
        seen = math.log1p(value) if self._log1p else value
        if self._history.points == 1:
            self._filter.x = np.array([[seen], [0.0]])
            return
        self._filter.predict()
        self._filter.update(seen)

    def forecast(self, steps: int = 1) -> float | None:
        ahead(steps)
        history = self._history
        if history.points < self._min_points:
            return history.last
        level, trend = (float(v) for v in self._filter.x[:, 0])
        value = level + steps * trend
        return history.bound(exp1m(value) if self._log1p else value)

    def rearm(self) -> None:
        self._history.idle = True

    def to_state(self) -> dict[str, Any]:
        return {
            "history": self._history.to_state(),
            "log1p": self._log1p,
            "x": self._filter.x[:, 0].tolist(),
            "p": self._filter.P.tolist(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """As for every forecaster; a state that was learned on the other scale (log1p) is refused too."""
        try:
            if state["log1p"] != self._log1p:
                raise ValueError(f"learned with log1p={state['log1p']}, but log1p={self._log1p} is configured")
            history = History.from_state(state["history"])
            x, p = (
                np.array(state["x"], dtype=np.float64).reshape(2, 1),
                np.array(state["p"], dtype=np.float64).reshape(2, 2),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise damaged("kalman", e) from e
        self._history, self._filter.x, self._filter.P = history, x, p


def _filter(q_level: float, q_trend: float, r: float) -> Any:
    try:
        from filterpy.kalman import KalmanFilter  # here: it is slow to import, and only this forecaster needs it
    except ImportError as e:
        raise ConfigError("load_predictor 'kalman' needs filterpy: pip install headrace[kalman]") from e
    kalman = KalmanFilter(dim_x=2, dim_z=1)
    kalman.F = np.array([[1.0, 1.0], [0.0, 1.0]])
    kalman.H = np.array([[1.0, 0.0]])
    kalman.P = np.eye(2) * FIRST_VARIANCE
    kalman.Q = np.diag([max(1e-12, q_level), max(1e-12, q_trend)])
    kalman.R = np.array([[max(1e-9, r)]])
    return kalman
