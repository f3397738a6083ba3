"""Meta's Prophet over a window of recent values. Needs the package prophet where fits are made."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from headrace.models.forecast.base import History, ahead, damaged, exp1m, log_of
from headrace.models.forecast.extras import need
from headrace.models.forecast.fitting import FitJob, FitResult, finite, found, unusable
from headrace.models.forecast.pack import pack, unpack
from headrace.schemas.errors import ConfigError

KIND = "prophet"
UNFIT = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)  # what it throws at odd series
REACH = 64  # windows that are foretold in one go, beyond those until the next fit
MOST_FORETOLD = 10_000
WEEK_S = 604_800
EPOCH = "2024-01-01"  # a Monday; there is no clock here, so day and week begin with the first value


@dataclass(frozen=True, slots=True)
class ProphetFit:
    """One fit of `values`, and its forecast for the next `reach` windows. `start_s`: of the first value since EPOCH."""

    at: int
    values: tuple[float, ...]
    start_s: float
    interval_s: float
    reach: int
    newest: float  # as observed; `values` may be logarithms

    @property
    def kind(self) -> str:
        return KIND

    def run(self) -> FitResult:
        """Raises ImportError where prophet is not installed; a series that it cannot fit is a failure."""
        import pandas
        from cmdstanpy import disable_logging  # the solver's; it comes with prophet
        from prophet import Prophet as Model

        n = len(self.values)
        seconds = self.start_s + self.interval_s * np.arange(n + self.reach)
        times = pandas.Timestamp(EPOCH) + pandas.to_timedelta(seconds, unit="s")
        try:
            model = Model(uncertainty_samples=0)
            with disable_logging():
                model.fit(pandas.DataFrame({"ds": times[:n], "y": self.values}))
            path = model.predict(pandas.DataFrame({"ds": times[n:]}))["yhat"].to_numpy(dtype=np.float64)
        except UNFIT as e:
            return FitResult(KIND, self.at, self.newest, None, f"{type(e).__name__}: {e}")
        if not np.isfinite(path).all():
            return FitResult(KIND, self.at, self.newest, None, "its forecast is not finite")
        return FitResult(KIND, self.at, self.newest, {"path": path.tolist()})


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a fit found: the windows after its values."""

    path: Annotated[tuple[float, ...], Meta(min_length=1, max_length=MOST_FORETOLD)]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Foretold":
        """From the values of a result. Raises RecordError where they are not those of a fit."""
        foretold = found(KIND, values, cls)
        if not finite(foretold.path):
            raise unusable(KIND, "its forecast is not finite")
        return foretold


class Prophet:
    """Prophet with its defaults (Taylor and Letham 2018) on the last `window` values, `interval_s` seconds apart.

    Fitted anew after every `refit_every` values, never for the same ones twice; while all values of the window are
    equal, that value is the forecast and nothing is fitted. Until `min_points` values the last one is.
    With `log1p` it sees log(1 + value).

    Raises ConfigError where prophet is not installed or an option is out of range.

    >>> prophet = Prophet()
    >>> for value in [10, 20, 30, 40, 50, 60, 70, 80]:
    ...     prophet.observe(value)
    >>> round(prophet.forecast())
    90
    """

    def __init__(
        self,
        *,
        log1p: bool = False,
        min_points: int = 5,
        window: int = 50,
        interval_s: float = 180.0,
        refit_every: int = 1,
    ) -> None:
        need("prophet", KIND)
        if min_points < 2:
            raise ConfigError(f"min_points ({min_points}) must be at least 2 for 'prophet': one value has no trend")
        if window < min_points:
            raise ConfigError(
                f"prophet_window_size ({window}) is below min_points ({min_points}): there would never be a fit. "
                "Raise the first"
            )
        if not 0 < interval_s <= WEEK_S or refit_every < 1:
            raise ConfigError(f"prophet needs 0 < interval_s ({interval_s}) <= a week and refit_every >= 1")
        self.inline = True
        self._log1p, self._min_points = log1p, min_points
        self._interval_s, self._refit_every = interval_s, refit_every
        self._history = History()
        self._values: deque[float] = deque(maxlen=window)
        self._fitted_at = 0  # points
        self._path: tuple[float, ...] = ()  # of the windows after those

    def observe(self, value: float) -> None:
        if self._history.add(value):
            self._values.append(float(value))

    def forecast(self, steps: int = 1) -> float | None:
        ahead(steps)
        history = self._history
        if history.points < self._min_points or self._flat():
            return history.last
        if self.inline:
            for job in self.fit_jobs():
                self.take_fit(job.run())
        if not self._path:
            return history.last
        place = history.points - self._fitted_at + steps - 1
        value = self._path[min(place, len(self._path) - 1)]
        return history.bound(exp1m(value) if self._log1p else value)

    def _flat(self) -> bool:
        return all(v == self._values[0] for v in self._values)

    def rearm(self) -> None:
        self._history.idle = True

    def fit_jobs(self) -> tuple[FitJob, ...]:
        points, window = self._history.points, len(self._values)
        if points < self._min_points or self._flat():
            return ()
        if self._fitted_at and points - self._fitted_at < self._refit_every:
            return ()
        start_s = (points - window) * self._interval_s % WEEK_S
        seen = tuple(log_of(v, self._log1p) for v in self._values)
        reach = self._refit_every + REACH
        return (ProphetFit(points, seen, start_s, self._interval_s, reach, self._values[-1]),)

    def take_fit(self, result: FitResult) -> bool:
        """Stale is what is not newer than the fit in use, or whose values are all gone. Raises RecordError."""
        behind = self._history.points - result.at
        if result.kind != KIND or result.at <= self._fitted_at or not 0 <= behind < len(self._values):
            return False
        if self._values[-1 - behind] != result.newest:
            return False
        if result.values is not None:
            self._path = Foretold.of(result.values).path
        else:
            self._path = self._path[result.at - self._fitted_at :]  # the fit before has foretold these windows too
        self._fitted_at = result.at
        return True

    def to_state(self) -> dict[str, Any]:
        return {
            "history": self._history.to_state(),
            "log1p": self._log1p,
            "values": pack(self._values),
            "fitted_at": self._fitted_at,
            "path": pack(self._path),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """As for every forecaster; a state that was learned on the other scale (log1p) is refused too."""
        try:
            if state["log1p"] != self._log1p:
                raise ValueError(f"learned with log1p={state['log1p']}, but log1p={self._log1p} is configured")
            history, values = History.from_state(state["history"]), unpack(state["values"]).tolist()
            fitted_at, path = int(state["fitted_at"]), tuple(unpack(state["path"]).tolist())
        except (KeyError, TypeError, ValueError) as e:
            raise damaged(KIND, e) from e
        self._history, self._values = history, deque(values, maxlen=self._values.maxlen)
        self._fitted_at, self._path = fitted_at, path
