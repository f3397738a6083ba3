"""Windows of equal length from single arrivals, for warm-ups and for judging forecasters on a trace."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """What arrived: requests, and their mean lengths in tokens; None where nothing arrived."""

    requests: int
    isl: float | None
    osl: float | None


def windows(arrivals: Iterable[tuple[float, int, int]], interval_s: float) -> list[Window]:
    """Windows from the first arrival to the one that holds the last; those in between without any are kept.

    `arrivals`: seconds, input tokens, output tokens, in any order. The last window is seldom over when a trace ends.

    >>> [w.requests for w in windows([(0, 9, 9), (0, 9, 9), (70, 9, 9), (245, 9, 9)], 60.0)]
    [2, 1, 0, 0, 1]
    """
    rows = list(arrivals)
    if not rows:
        return []
    start = min(at for at, _, _ in rows)
    sums: dict[int, list[int]] = {}
    for at, isl, osl in rows:
        found = sums.setdefault(int((at - start) // interval_s), [0, 0, 0])
        found[0], found[1], found[2] = found[0] + 1, found[1] + isl, found[2] + osl
    return [_window(*sums.get(n, (0, 0, 0))) for n in range(max(sums) + 1)]


def _window(requests: int, isl: int, osl: int) -> Window:
    return Window(requests, isl / requests, osl / requests) if requests else Window(0, None, None)


def lengths(values: Iterable[float | None]) -> list[float]:
    """Mean lengths as the planner feeds them: a window without requests says nothing new, so the last ones are kept.

    >>> lengths([None, 7.0, None, 8.0])
    [7.0, 7.0, 8.0]
    """
    kept: list[float] = []
    for value in values:
        if value is not None:
            kept.append(value)
        elif kept:
            kept.append(kept[-1])
    return kept
