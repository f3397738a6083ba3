"""How good a forecaster would have been on a recorded series, beside the last value."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.models.forecast.base import Forecaster


@dataclass(frozen=True, slots=True)
class Score:
    """Errors over all windows that had been foretold. `wape`: their sum over the sum of the values."""

    mae: float
    wape: float
    windows: int


def replay(forecaster: Forecaster, values: Sequence[float], horizons: Sequence[int]) -> dict[int, list[float]]:
    """What would have been foretold after each value, for each horizon (windows ahead); 0 while nothing was known."""
    foretold: dict[int, list[float]] = {h: [] for h in horizons}
    for value in values:
        forecaster.observe(value)
        for horizon, found in foretold.items():
            found.append(forecaster.forecast(horizon) or 0.0)
    return foretold


def score(values: Sequence[float], foretold: Sequence[float], horizon: int) -> Score | None:
    """`foretold[n]` was said after `values[n]` for the value `horizon` windows later. None: nothing to judge."""
    pairs = list(zip(values[horizon:], foretold, strict=False))
    total = sum(abs(value) for value, _ in pairs)
    if not pairs or total == 0:
        return None
    errors = sum(abs(value - said) for value, said in pairs)
    return Score(errors / len(pairs), errors / total, len(pairs))
