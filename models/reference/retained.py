"""The samples that a regression keeps: as many as allowed, spread over the range of loads that was seen."""

from dataclasses import dataclass, field
from math import isqrt

Features = tuple[float, ...]
Sample = tuple[Features, float]  # what an iteration held, and what it took


@dataclass(slots=True)
class Retained:
    """Samples in equal buckets between the least and the largest feature ever seen.

    One too many drives out the oldest of the fullest bucket. Which of two equally full ones that is the reference
    leaves to the order of a hash map; here it is the one that was filled first.
    """

    axes: int
    bucket_count: int
    keep: int
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    buckets: dict[tuple[int, ...], list[Sample]] = field(default_factory=dict)

    def add(self, x: Features, y: float) -> None:
        if self._widen(x):
            kept, self.buckets = self.samples, {}
            for sample in kept:
                self._put(sample)
        self._put((x, y))
        if len(self) > self.keep:
            fullest = max(self.buckets, key=lambda place: len(self.buckets[place]))  # the first of equals
            self.buckets[fullest].pop(0)
            if not self.buckets[fullest]:
                del self.buckets[fullest]

    def restore(self, low: list[float], high: list[float], samples: list[Sample]) -> None:
        """Bounds and samples as they were, in the order that `samples` has them."""
        self.low, self.high, self.buckets = low, high, {}
        for sample in samples:
            self._put(sample)

    @property
    def samples(self) -> list[Sample]:
        return [sample for bucket in self.buckets.values() for sample in bucket]

    def __len__(self) -> int:
        return sum(map(len, self.buckets.values()))

    def _widen(self, x: Features) -> bool:
        """Bounds only ever widen. True where one did."""
        if not self.low:
            self.low, self.high = list(x), list(x)
            return True
        before = (*self.low, *self.high)
        self.low = [min(a, b) for a, b in zip(self.low, x, strict=True)]
        self.high = [max(a, b) for a, b in zip(self.high, x, strict=True)]
        return before != (*self.low, *self.high)

    def _put(self, sample: Sample) -> None:
        n = self.bucket_count if self.axes == 1 else isqrt(self.bucket_count)
        place = tuple(
            0 if high <= low else min(n - 1, max(0, int((v - low) / (high - low) * n)))
            for v, low, high in zip(sample[0], self.low, self.high, strict=True)
        )
        self.buckets.setdefault(place, []).append(sample)
