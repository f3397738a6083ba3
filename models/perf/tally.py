"""Tally: a mean that follows its values."""

from dataclasses import dataclass

from headrace.models.perf.line import Array

WINDOW_ROWS = 512.0  # rows that a mean remembers


@dataclass(frozen=True, slots=True)
class Tally:
    """The plain mean of the first `WINDOW_ROWS` values, then one in which older values fade."""

    count: float = 0.0
    mean: float = 0.0

    def fold(self, values: Array) -> "Tally":
        """This mean and these values, shape (rows,)."""
        if not len(values):
            return self
        total = self.count + len(values)
        mean = self.mean + (float(values.sum()) / len(values) - self.mean) * (len(values) / total)
        return Tally(min(total, WINDOW_ROWS), mean)

    @property
    def known(self) -> float | None:
        return self.mean if self.count else None
