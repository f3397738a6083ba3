"""What every forecaster can do, and the history that every forecaster keeps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.models.forecast.fitting import FitJob, FitResult
from headrace.schemas.errors import StateError

MOST = 1e15  # the largest number that a record may hold
MAX_GROWTH = 3.0  # times the largest value seen: no forecast goes above it
LOG_MOST = 700.0  # exp of more overflows


class Forecaster(Protocol):
    """One series of non-negative values, one per window of equal length."""

    inline: bool  # make a due fit where it is asked for; False: only by `fit_jobs` and `take_fit`

    def observe(self, value: float) -> None:
        """Take the value of the window that has just ended.

        Zeros before the first non-zero value are leading idle and teach nothing. What is no value (NaN, negative,
        infinite or above `MOST`) is ignored: unknown is not zero.
        """

    def forecast(self, steps: int = 1) -> float | None:
        """The value `steps` windows ahead: finite, >= 0, at most `MAX_GROWTH` times the largest value seen.

        0.0 while only zeros were seen; None while nothing was. Changes nothing, except that where `inline` is true a
        due fit is made first. Raises ValueError for `steps` < 1.
        """

    def rearm(self) -> None:
        """Begin to live after a warm-up: zeros before the next non-zero value are leading idle again."""

    def fit_jobs(self) -> tuple[FitJob, ...]:
        """The fits that are due, to be run anywhere; empty where nothing has changed since the last ones."""

    def take_fit(self, result: FitResult) -> bool:
        """Take in what a job gave. False, with nothing changed, where it is stale or of another series.

        Raises RecordError (`invalid`), with nothing changed either, where its values cannot be those of such a fit.
        """

    def to_state(self) -> dict[str, Any]:
        """What was learned, for JSON; options are not part of it."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `to_state` of a forecaster of the same name. Raises StateError where it is not one."""


class Light:
    """For forecasters that never fit: what they learn, they learn in `observe`."""

    inline = True

    def fit_jobs(self) -> tuple[FitJob, ...]:
        return ()

    def take_fit(self, result: FitResult) -> bool:
        return False


@dataclass(slots=True)
class History:
    """The little of a series that every forecaster needs; of constant size."""

    last: float | None = None  # newest value, None before the first one
    largest: float = 0.0
    points: int = 0  # values since the leading idle ended, that one included
    idle: bool = True  # zeros are leading idle until the next non-zero value

    def add(self, value: float) -> bool:
        """Take a value in; False where a forecaster has nothing to learn from it."""
        if not 0 <= value <= MOST:  # NaN is neither
            return False
        if value == 0 and self.idle:
            if self.points == 0:
                self.last = 0.0
            return False
        self.idle = False
        self.last = float(value)
        self.points += 1
        self.largest = max(self.largest, float(value))
        return True

    def bound(self, forecast: float) -> float:
        """The forecast within 0 and the growth that is believed."""
        return min(max(0.0, forecast), self.largest * MAX_GROWTH)

    def to_state(self) -> dict[str, Any]:
        return {"last": self.last, "largest": self.largest, "points": self.points, "idle": self.idle}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "History":
        """Raises KeyError, TypeError or ValueError where `state` is not one of `to_state`."""
        last = state["last"]
        points = int(state["points"])
        return cls(
            None if last is None else float(last), float(state["largest"]), points, bool(state.get("idle", points == 0))
        )


def ahead(steps: int) -> int:
    """`steps` checked. Raises ValueError below 1."""
    if steps < 1:
        raise ValueError(f"a forecast is for a coming window: steps must be >= 1, not {steps}")
    return steps


def steps_ahead(seconds: float, interval_s: float) -> int:
    """How many windows of `interval_s` cover `seconds`, at least one: the horizon for a worker's start-up."""
    return max(1, math.ceil(seconds / interval_s - 1e-9))


def warm_up(forecaster: Forecaster, values: Sequence[float]) -> None:
    """Teach a forecaster a recorded series of the same windows, oldest first; it then waits for its first live value.

    Fits are not made on the way: those that are due at the end are made then, or left to the fits' worker.
    """
    inline, forecaster.inline = forecaster.inline, False
    for value in values:
        forecaster.observe(value)
    forecaster.inline = inline
    forecaster.rearm()


def log_of(value: float, log1p: bool) -> float:
    """The value as the model sees it."""
    return math.log1p(value) if log1p else value


def exp1m(value: float) -> float:
    """The inverse of log1p, without overflow."""
    return math.expm1(min(value, LOG_MOST))


def damaged(name: str, cause: Exception) -> StateError:
    """The error for a state that cannot be loaded."""
    return StateError(f"state of forecaster {name!r} is damaged ({cause!r}): drop the snapshot and learn anew")
