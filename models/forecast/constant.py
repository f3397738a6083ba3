"""The last value again. Hard to beat where the load has no trend; the yardstick for the others."""

from typing import Any

from headrace.models.forecast.base import History, Light, ahead, damaged


class Constant(Light):
    """Forecast = last value, whatever the horizon (reference-semantics 4.2).

    >>> constant = Constant()
    >>> constant.observe(7.0)
    >>> constant.forecast()
    7.0
    """

    def __init__(self) -> None:
        self._history = History()

    def observe(self, value: float) -> None:
        self._history.add(value)

    def forecast(self, steps: int = 1) -> float | None:
        ahead(steps)
        return self._history.last

    def rearm(self) -> None:
        self._history.idle = True

    def to_state(self) -> dict[str, Any]:
        return {"history": self._history.to_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        try:
            self._history = History.from_state(state["history"])
        except (KeyError, TypeError, ValueError) as e:
            raise damaged("constant", e) from e
