"""A series of rates in windows of one length, as it is in windows of another."""

from collections.abc import Sequence

import numpy as np


def resample(values: Sequence[float], from_s: float, to_s: float, most: int) -> list[float]:
    """Means over windows of `to_s` of values that each held for `from_s` seconds; both end with the newest value.

    At most `most` windows, the newest; at least one, over all there is, unless there is nothing.

    >>> resample([1.0, 2.0, 4.0, 4.0], 60.0, 120.0, most=9), resample([1.0, 4.0], 60.0, 30.0, most=3)
    ([1.5, 4.0], [1.0, 4.0, 4.0])
    """
    if not values:
        return []
    lasts_s = len(values) * from_s
    count = min(most, max(1, int(lasts_s / to_s + 1e-9)))
    sums = np.concatenate(([0.0], np.cumsum(np.array(values, dtype=np.float64)))) * from_s
    edges = np.maximum(0.0, lasts_s - to_s * np.arange(count, -1, -1))
    at_edges = np.interp(edges, from_s * np.arange(len(values) + 1), sums)
    means = np.diff(at_edges) / np.diff(edges)
    return [float(mean) for mean in np.clip(means, min(values), max(values))]  # a constant one stays so, to the bit
