"""What every forecaster can do, and the history that every forecaster keeps."""

from dataclasses import dataclass
from typing import Any, Protocol

from headrace.schemas.errors import StateError

MOST = 1e15  # the largest number that a record may hold
MAX_GROWTH = 3.0  # times the largest value seen: no forecast goes above it


class Forecaster(Protocol):
    """One series of non-negative values, one per window of equal length."""

    def observe(self, value: float) -> None:
        """Take the value of the window that has just ended.

        Zeros before the first non-zero value are leading idle and teach nothing. What is no value (NaN, negative,
        infinite or above `MOST`) is ignored: unknown is not zero.
        """

    def forecast(self, steps: int = 1) -> float | None:
        """The value `steps` windows ahead: finite, >= 0, at most `MAX_GROWTH` times the largest value seen.

        0.0 while only zeros were seen; None while nothing was. Changes nothing. Raises ValueError for `steps` < 1.
        """

    def to_state(self) -> dict[str, Any]:
        """What was learned, for JSON; options are not part of it."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `to_state` of a forecaster of the same name. Raises StateError where it is not one."""


@dataclass(slots=True)
class History:
    """The little of a series that every forecaster needs; of constant size."""

    last: float | None = None  # newest value, None before the first one
    largest: float = 0.0
    points: int = 0  # values since the leading idle ended, that one included

    def add(self, value: float) -> bool:
        """Take a value in; False where a forecaster has nothing to learn from it."""
        if not 0 <= value <= MOST:  # NaN is neither
            return False
        self.last = float(value)
        if value == 0 and self.points == 0:
            return False
        self.points += 1
        self.largest = max(self.largest, float(value))
        return True

    def bound(self, forecast: float) -> float:
        """The forecast within 0 and the growth that is believed."""
        return min(max(0.0, forecast), self.largest * MAX_GROWTH)

    def to_state(self) -> dict[str, Any]:
        return {"last": self.last, "largest": self.largest, "points": self.points}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "History":
        """Raises KeyError, TypeError or ValueError where `state` is not one of `to_state`."""
        last = state["last"]
        return cls(None if last is None else float(last), float(state["largest"]), int(state["points"]))


def ahead(steps: int) -> int:
    """`steps` checked. Raises ValueError below 1."""
    if steps < 1:
        raise ValueError(f"a forecast is for a coming window: steps must be >= 1, not {steps}")
    return steps


def damaged(name: str, cause: Exception) -> StateError:
    """The error for a state that cannot be loaded."""
    return StateError(f"state of forecaster {name!r} is damaged ({cause!r}): drop the snapshot and learn anew")
