"""Exponential smoothing: a mean that forgets. Best where the load has a level and the rest is noise."""

from typing import Any

from headrace.models.forecast.base import History, Light, ahead, damaged, exp1m, log_of
from headrace.schemas.errors import ConfigError


class Smooth(Light):
    """level += weight (value - level); forecast = level, whatever the horizon (Brown 1956).

    Raises ConfigError for a weight that is not above 0 and at most 1.

    >>> smooth = Smooth(weight=0.5)
    >>> for value in [10, 20, 20]:
    ...     smooth.observe(value)
    >>> smooth.forecast()
    17.5
    """

    def __init__(self, *, weight: float = 0.3, log1p: bool = False) -> None:
        if not 0 < weight <= 1:
            raise ConfigError(f"smooth_weight ({weight}) must be above 0 and at most 1")
        self._weight = weight
        self._log1p = log1p
        self._history = History()
        self._level = 0.0

    def observe(self, value: float) -> None:
        if not self._history.add(value):
            return
        seen = log_of(value, self._log1p)
        self._level = seen if self._history.points == 1 else self._level + self._weight * (seen - self._level)

    def forecast(self, steps: int = 1) -> float | None:
        ahead(steps)
        if self._history.points == 0:
            return self._history.last
        return self._history.bound(exp1m(self._level) if self._log1p else self._level)

    def rearm(self) -> None:
        self._history.idle = True

    def to_state(self) -> dict[str, Any]:
        return {"history": self._history.to_state(), "log1p": self._log1p, "level": self._level}

    def load_state(self, state: dict[str, Any]) -> None:
        try:
            if state["log1p"] != self._log1p:
                raise ValueError(f"learned with log1p={state['log1p']}, but log1p={self._log1p} is configured")
            history, level = History.from_state(state["history"]), float(state["level"])
        except (KeyError, TypeError, ValueError) as e:
            raise damaged("smooth", e) from e
        self._history, self._level = history, level
