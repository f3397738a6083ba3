"""Last values and the same time of earlier seasons, weighed by a line that learns; the season's length is found."""

from collections import deque
from typing import Any

import numpy as np

from headrace.models.forecast.base import History, Light, ahead, damaged, exp1m, log_of
from headrace.models.forecast.horizons import HORIZONS, between
from headrace.models.forecast.pack import Floats, pack, pack_short, rounded, unpack, unpack_short
from headrace.models.forecast.recursive import Line
from headrace.models.forecast.season import SHORTEST, find_period, seasonal_change
from headrace.schemas.errors import ConfigError

REMEMBERED = 2016  # values: two weeks of 10 minutes
LAGS = 3
MEANS = (0.1, 0.3)  # weights of two means that forget
FEATURES = LAGS + len(MEANS) + 1
LOOK_EVERY = 12  # values, at least; and a 16th of those known


class Seasonal(Light):
    """The change from the last value to the one `h` windows ahead, by a line for each of a few horizons `h`.

    Its features, all relative to the last value: the three values before, two means that forget, and the change at the
    same place of up to seven earlier seasons. The season is the clearest peak of the autocorrelation over the last
    `REMEMBERED` values, looked for again as they come; until there is one, the forecast is an autoregression.
    Between the horizons their lines share. Until `min_points` values the last one is the forecast.

    >>> seasonal = Seasonal()
    >>> for hour in range(24 * 7):
    ...     seasonal.observe(100.0 + 50.0 * (hour % 24 in (9, 10, 11)))
    >>> seasonal.period, round(seasonal.forecast()), seasonal.forecast(10) > 130
    (24, 100, True)
    """

    def __init__(self, *, min_points: int = 5, log1p: bool = False) -> None:
        if min_points < 1:
            raise ConfigError(f"min_points ({min_points}) must be at least 1: there is no forecast without a value")
        self._min_points = min_points
        self._log1p = log1p
        self._history = History()
        self._values: deque[float] = deque(maxlen=REMEMBERED)
        self._means = [0.0 for _ in MEANS]
        self._lines = {h: Line.empty(FEATURES) for h in HORIZONS}
        self._waiting: deque[Floats] = deque(maxlen=HORIZONS[-1])  # features of the last windows, one row a horizon
        self._look_at = 2 * SHORTEST
        self.period = 0  # windows; 0: no season

    def observe(self, value: float) -> None:
        if not self._history.add(value):
            return
        seen = rounded(log_of(value, self._log1p))
        self._values.append(seen)
        first = len(self._values) == 1
        self._means = [seen if first else m + w * (seen - m) for m, w in zip(self._means, MEANS, strict=True)]
        for row, (h, line) in enumerate(self._lines.items()):
            if len(self._waiting) >= h:
                line.learn(self._waiting[-h][row], seen - self._values[-h - 1])
        if self._history.points >= self._look_at:
            self._look()
        self._waiting.append(np.array([self._features(h) for h in HORIZONS]))

    def _look(self) -> None:
        self.period = find_period(np.array(self._values), self.period)
        self._look_at = self._history.points + max(LOOK_EVERY, len(self._values) // 16)

    def _features(self, steps: int) -> Floats:
        values = self._values
        last = values[-1]
        lags = [values[max(0, len(values) - 1 - lag)] - last for lag in range(1, LAGS + 1)]
        season = seasonal_change(np.array(values), self.period, steps) if self.period else 0.0
        return np.array([*lags, *(mean - last for mean in self._means), season])

    def forecast(self, steps: int = 1) -> float | None:
        ahead(steps)
        history = self._history
        if history.points < max(2, self._min_points):
            return history.last
        features = self._waiting[-1][HORIZONS.index(steps)] if steps in HORIZONS else self._features(steps)
        lines = ((self._lines[HORIZONS[row]], share) for row, share in between(steps))
        value = self._values[-1] + sum(share * line.predict(features) for line, share in lines)
        return history.bound(exp1m(value) if self._log1p else value)

    def rearm(self) -> None:
        self._history.idle = True

    def to_state(self) -> dict[str, Any]:
        return {
            "history": self._history.to_state(),
            "log1p": self._log1p,
            "values": pack_short(np.array(self._values, dtype=np.float64)),
            "means": pack(self._means),
            "lines": [line.to_state() for line in self._lines.values()],
            "waiting": pack(np.array(self._waiting, dtype=np.float64)),
            "period": self.period,
            "look_at": self._look_at,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """As for every forecaster; a state that was learned on the other scale (log1p) is refused too."""
        fresh = Seasonal(min_points=self._min_points, log1p=self._log1p)
        try:
            if state["log1p"] != self._log1p:
                raise ValueError(f"learned with log1p={state['log1p']}, but log1p={self._log1p} is configured")
            fresh._history = History.from_state(state["history"])
            fresh._values.extend(unpack_short(state["values"]).tolist())
            fresh._means = unpack(state["means"], (len(MEANS),)).tolist()
            lines = [Line.from_state(line, FEATURES) for line in state["lines"]]
            fresh._lines = dict(zip(HORIZONS, lines, strict=True))
            fresh._waiting.extend(unpack(state["waiting"], (-1, len(HORIZONS), FEATURES)))
            fresh.period, fresh._look_at = int(state["period"]), int(state["look_at"])
        except (KeyError, TypeError, ValueError) as e:
            raise damaged("seasonal", e) from e
        self.__dict__.update(fresh.__dict__)
