"""Arithmetic of counters and histograms that a process exposes: what was added between two readings.

No extrapolation and no rates. A reading below the one before it means that the counter was reset: what it shows now
was added since. A series that was not there before counts from zero. A series that is gone adds nothing, and counts
from zero when it comes back. (prometheus#12967, #3806, #3886: `increase()` loses the first sample of a series and is
fractional.)
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from headrace.schemas.traffic import Distribution

Key = TypeVar("Key", bound=Hashable)

LARGEST_COUNT = 2.0**40  # as in the records: no real counter gets there
LARGEST_SUM = 1e15


def is_count(value: float) -> bool:
    """Can this be a counter of events? NaN, infinities, negative and absurd numbers cannot."""
    return 0.0 <= value <= LARGEST_COUNT  # NaN fails both comparisons


def is_sum(value: float) -> bool:
    """Can this be a sum of tokens or seconds?"""
    return 0.0 <= value <= LARGEST_SUM


def increase(before: float | None, now: float) -> float:
    """What a counter added between two readings; `before` is None for a new series. Never negative."""
    if before is None or now < before:
        return now
    return now - before


def total_increase(before: Mapping[Key, float], now: Mapping[Key, float]) -> float:
    """What all series of a counter added, summed. The order of the series does not matter."""
    return math.fsum(increase(before.get(key), value) for key, value in now.items())


@dataclass(frozen=True, slots=True)
class Histogram:
    """One histogram, or what one added: `count` observations that sum up to `total`.

    `bounds` are the finite upper bounds, rising; `cumulative` holds the observations up to each of them, so that the
    open last bucket is `count` minus the last. `bounds` None: the buckets are not known.
    """

    count: float
    total: float
    bounds: tuple[float, ...] | None = None
    cumulative: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.bounds or ()) == len(self.cumulative)


NOTHING = Histogram(0.0, 0.0)


def histogram_increase(before: Histogram | None, now: Histogram) -> Histogram:
    """What a histogram added between two readings.

    Count, sum and buckets are reset together, so a drop of any of them means that all of `now` is new: after a restart
    the sum may already be above its old value while the count is not.
    """
    if before is None or _was_reset(before, now):
        return now
    if before.bounds != now.bounds:  # another build with other buckets, which yet kept its count: only the mean is sure
        return Histogram(now.count - before.count, now.total - before.total)
    cumulative = tuple(after - earlier for earlier, after in zip(before.cumulative, now.cumulative, strict=True))
    return Histogram(now.count - before.count, now.total - before.total, now.bounds, cumulative)


def _was_reset(before: Histogram, now: Histogram) -> bool:
    if now.count < before.count or now.total < before.total:
        return True
    return before.bounds == now.bounds and any(
        after < earlier for earlier, after in zip(before.cumulative, now.cumulative, strict=True)
    )


def total_histogram_increase(before: Mapping[Key, Histogram], now: Mapping[Key, Histogram]) -> Histogram:
    """What all series of a histogram added, as one histogram."""
    return merge(histogram_increase(before.get(key), reading) for key, reading in now.items())


def merge(parts: Iterable[Histogram]) -> Histogram:
    """Several histograms as one: sums of counts, of sums and of buckets. Those without observations do not matter.

    Buckets are lost where the parts have different bounds.
    """
    seen = [part for part in parts if part.count > 0.0 or part.total > 0.0]
    if not seen:
        return NOTHING
    count = math.fsum(part.count for part in seen)
    total = math.fsum(part.total for part in seen)
    bounds = seen[0].bounds
    if bounds is None or any(part.bounds != bounds for part in seen):
        return Histogram(count, total)
    cumulative = tuple(math.fsum(column) for column in zip(*(part.cumulative for part in seen), strict=True))
    return Histogram(count, total, bounds, cumulative)


def distribution(added: Histogram) -> Distribution:
    """What was added as a Distribution: mean = sum / count, null where nothing was counted (0/0, dynamo#6985).

    Buckets that contradict each other (read while they were written) are left out; count and mean stay.
    """
    count = round(added.count)
    if count == 0:
        return Distribution(count=0, mean=None)
    mean = added.total / added.count
    if added.bounds is None:
        return Distribution(count=count, mean=mean)
    steps = [0.0, *added.cumulative, added.count]
    counts = [round(after - earlier) for earlier, after in pairwise(steps)]
    if any(n < 0 for n in counts) or sum(counts) != count:
        return Distribution(count=count, mean=mean)
    return Distribution(count=count, mean=mean, bounds=list(added.bounds), counts=counts)


def mean(added: Histogram) -> float | None:
    """The mean of what was added, or None when nothing was."""
    return added.total / added.count if round(added.count) else None
