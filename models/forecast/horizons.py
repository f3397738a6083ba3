"""What is learned for a few horizons, used for all: the nearest two share, by the logarithm of the steps."""

import math

HORIZONS = (1, 4, 16)  # windows ahead


def between(steps: int) -> list[tuple[int, float]]:
    """Indices of the horizons around `steps`, and their shares (sum 1).

    >>> between(1), between(2), between(99)
    ([(0, 1.0)], [(0, 0.5), (1, 0.5)], [(2, 1.0)])
    """
    for high, horizon in enumerate(HORIZONS):
        if steps == horizon:
            return [(high, 1.0)]
        if steps < horizon:
            low = HORIZONS[high - 1]
            share = math.log(steps / low) / math.log(horizon / low)
            return [(high - 1, 1.0 - share), (high, share)]
    return [(len(HORIZONS) - 1, 1.0)]
