"""A moving average that begins with the first value that is not zero."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class MovingAverage:
    """Of the last `window` values. Zeros count, but for those before any other value."""

    window: int
    values: deque[float] = field(default_factory=deque)
    total: float = 0.0

    def add(self, value: float) -> None:
        if not self.values and value == 0.0:
            return
        self.values.append(value)
        self.total += value
        if len(self.values) > self.window:
            self.total -= self.values.popleft()

    @property
    def mean(self) -> float:
        """0 before the first value."""
        return self.total / len(self.values) if self.values else 0.0
