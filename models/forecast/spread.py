"""How far off forecasts have been lately, as quantiles of the value that will come."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.models.forecast.horizons import HORIZONS, between
from headrace.models.forecast.pack import pack_short, rounded, unpack_short

REMEMBERED = 200  # residuals of each horizon
MOST_RELATIVE = 1000.0
FEWEST = 8  # residuals; with less there are no quantiles
LEAST_LEVEL = 0.05  # of the largest value seen: below it errors are no longer counted in proportion


@dataclass(slots=True)
class Spread:
    """The last residuals of each horizon, relative to the forecast: load that doubles errs twice as far."""

    residuals: tuple[deque[float], ...] = field(
        default_factory=lambda: tuple(deque(maxlen=REMEMBERED) for _ in HORIZONS)
    )

    def learn(self, row: int, value: float, forecast: float, largest: float) -> None:
        """Of horizon number `row`: what came, what had been foretold, the largest value seen until then."""
        unit = max(forecast, LEAST_LEVEL * largest)
        if unit > 0:
            error = min(value - forecast, MOST_RELATIVE * unit)
            self.residuals[row].append(rounded(error / unit))

    def quantiles(
        self, levels: Sequence[float], steps: int, forecast: float, largest: float
    ) -> tuple[float, ...] | None:
        """Values that will not be exceeded with the probabilities `levels`; None with fewer than `FEWEST` residuals.

        Never below 0. Between horizons they are interpolated. Raises ValueError for a level outside 0..1.
        """
        if not all(0 <= level <= 1 for level in levels):
            raise ValueError(f"quantile levels are probabilities within 0 and 1, not {list(levels)}")
        used = [(row, share) for row, share in between(steps) if share]
        known = [(row, share) for row, share in used if len(self.residuals[row]) >= FEWEST]
        if not known:
            return None
        total = sum(share for _, share in known)
        unit = max(forecast, LEAST_LEVEL * largest)
        relative = sum(
            share / total * np.quantile(np.array(self.residuals[row]), np.array(levels)) for row, share in known
        )
        return tuple(max(0.0, forecast + unit * float(r)) for r in np.atleast_1d(relative))

    def to_state(self) -> list[str]:
        return [pack_short(np.array(rows, dtype=np.float64)) for rows in self.residuals]

    @classmethod
    def from_state(cls, state: list[Any]) -> "Spread":
        """Raises TypeError or ValueError where `state` is not one of `to_state`."""
        spread = cls()
        for rows, text in zip(spread.residuals, state, strict=True):
            rows.extend(unpack_short(text).tolist())
        return spread
