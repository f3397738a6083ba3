"""A Prometheus histogram: counts per bucket, sum, count. Bounds are inclusive (`le`); the last bucket is open."""

from bisect import bisect_left
from dataclasses import dataclass

from headrace.schemas.traffic import Distribution


@dataclass(frozen=True, slots=True)
class Reading:
    """A histogram at one moment."""

    counts: tuple[int, ...]
    count: int
    sum: float


class Histogram:
    """Observations since birth. The counters only rise."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        """`times` equal observations; 0 changes nothing."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times
        self.count += times

    def read(self) -> Reading:
        return Reading(tuple(self.counts), self.count, self.sum)

    def since(self, before: Reading | None) -> Distribution:
        """What was observed after an earlier reading (None = birth)."""
        counts = list(self.counts)
        count, total = self.count, self.sum
        if before is not None:
            counts = [now - then for now, then in zip(counts, before.counts, strict=True)]
            count -= before.count
            total -= before.sum
        # a sum of many floats can end a hair below an earlier one when nothing positive was added
        mean = max(0.0, total / count) if count else None
        return Distribution(count=count, mean=mean, bounds=list(self.bounds), counts=counts)
