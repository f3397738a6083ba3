"""Tally: a mean that follows its values."""

from dataclasses import dataclass

from headrace.models.perf.line import Array

WINDOW_ROWS = 512.0  # rows that a mean remembers


@dataclass(frozen=True, slots=True)
class Tally:
    """The plain mean of the first `WINDOW_ROWS` values, then one in which older values fade."""

    count: float = 0.0
    mean: float = 0.0

    def fold(self, values: Array, weights: Array | None = None, keep: float = 1.0) -> "Tally":
        """This mean, each old value weighing `keep`, and `values`, shape (rows,), weighing `weights`; all at most 1."""
        if not len(values):
            return self
        weight = float(len(values)) if weights is None else float(weights.sum())
        new_mean = float((values if weights is None else values * weights).sum()) / weight
        total = self.count * keep + weight
        return Tally(min(total, WINDOW_ROWS), self.mean + (new_mean - self.mean) * (weight / total))

    @property
    def known(self) -> float | None:
        return self.mean if self.count else None
