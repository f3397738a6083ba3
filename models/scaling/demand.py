"""What arrives: rates, lengths and their spread, from the traffic windows of the last minutes."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from headrace.schemas.traffic import Distribution, TrafficWindow

SPREAD_KNOWN_AT = 30  # prompts, below which their spread is anybody's guess
PAIRS_KNOWN_AT = 10
WILDEST = 50.0  # index of dispersion; more is a jump, not noise
WIDEST = 16.0  # squared coefficient of variation; a histogram's open end knows no better


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """The part of a traffic window that sizing needs; sums, so that slices add up."""

    end: float  # seconds
    seconds: float
    requests: int
    isl_count: int
    isl_sum: float
    isl_squares: float  # sum of squared prompt lengths, from the histogram; 0 where there is none
    osl_count: int
    osl_sum: float


def slice_of(w: TrafficWindow) -> Slice | None:
    """None where the arrivals are unknown."""
    if w.requests is None or w.end <= w.start:
        return None
    isl, osl = _sums(w.isl), _sums(w.osl)
    squares = _squares(w.isl) if w.isl else 0.0
    return Slice(w.end, w.end - w.start, w.requests, isl[0], isl[1], squares, *osl)


def rate(slices: Sequence[Slice], since: float, until: float = math.inf) -> float | None:
    """Requests/s over the slices that ended after `since`, up to `until`; None when there are none."""
    mine = [s for s in slices if since < s.end <= until]
    seconds = sum(s.seconds for s in mine)
    return sum(s.requests for s in mine) / seconds if seconds > 0 else None


def dispersion(slices: Sequence[Slice]) -> float | None:
    """Index of dispersion of arrivals, variance over mean of the counts of windows; 1 for a Poisson stream.

    From neighbouring windows, (n2/t2 - n1/t1)^2 t1 t2 / (n1 + n2), which for independent counts is the index on average
    and in which a slow rise or fall cancels out (von Neumann's successive differences, 1941). Within 0 and `WILDEST`;
    None with fewer than `PAIRS_KNOWN_AT` pairs of windows with arrivals.
    """
    found = []
    for a, b in pairwise(slices):
        if a.requests + b.requests and a.seconds > 0 and b.seconds > 0:
            step = b.requests / b.seconds - a.requests / a.seconds
            found.append(step**2 * a.seconds * b.seconds / (a.requests + b.requests))
    return min(WILDEST, sum(found) / len(found)) if len(found) >= PAIRS_KNOWN_AT else None


def merged(slices: Sequence[Slice], seconds: float) -> list[Slice]:
    """Neighbouring slices put together until each covers at least `seconds`; an old rest that does not is dropped."""
    found: list[Slice] = []
    part: list[Slice] = []
    covered = 0.0
    for s in reversed(slices):
        part.append(s)
        covered += s.seconds
        if covered >= seconds:
            found.append(_sum(part))
            part, covered = [], 0.0
    return found[::-1]


def trend(slices: Sequence[Slice], now: float, window_s: float, dispersion: float) -> float:
    """Requests/s that the rate rises or falls per second, as far as it is more than noise.

    The step between the means of the last two windows of `window_s`, shrunk by its share of signal: step^2 over
    step^2 + its variance if nothing had changed (an empirical-Bayes shrinkage, James and Stein 1961). 0 if unknown.
    """
    late, early = rate(slices, now - window_s), rate(slices, now - 2 * window_s, now - window_s)
    if late is None or early is None:
        return 0.0
    step = late - early
    noise = max(1.0, dispersion) * (late + early) / window_s
    return step / window_s * step**2 / (step**2 + noise) if step else 0.0


def lengths(slices: Iterable[Slice]) -> tuple[float, float] | None:
    """Mean input and output length in tokens; None when nobody measured any."""
    kept = list(slices)
    isl_count, osl_count = sum(s.isl_count for s in kept), sum(s.osl_count for s in kept)
    if not isl_count or not osl_count:
        return None
    return sum(s.isl_sum for s in kept) / isl_count, sum(s.osl_sum for s in kept) / osl_count


def spread(slices: Iterable[Slice]) -> float | None:
    """Squared coefficient of variation of prompt lengths, within 0 and `WIDEST`; None where no histogram tells."""
    kept = [s for s in slices if s.isl_squares > 0]
    count, total = sum(s.isl_count for s in kept), sum(s.isl_sum for s in kept)
    if count < SPREAD_KNOWN_AT or total <= 0:
        return None
    mean = total / count
    return min(WIDEST, max(0.0, sum(s.isl_squares for s in kept) / count / mean**2 - 1.0))


def _sum(part: Sequence[Slice]) -> Slice:
    """One slice of several, the newest first."""
    return Slice(
        end=part[0].end,
        seconds=sum(p.seconds for p in part),
        requests=sum(p.requests for p in part),
        isl_count=sum(p.isl_count for p in part),
        isl_sum=sum(p.isl_sum for p in part),
        isl_squares=sum(p.isl_squares for p in part),
        osl_count=sum(p.osl_count for p in part),
        osl_sum=sum(p.osl_sum for p in part),
    )


def _sums(d: Distribution | None) -> tuple[int, float]:
    return (0, 0.0) if d is None or not d.count or d.mean is None else (d.count, d.count * d.mean)


def _squares(d: Distribution) -> float:
    """Sum of squares, every observation at the middle of its bucket; the open bucket counts from its lower bound."""
    if not d.bounds or not sum(d.counts):
        return 0.0
    lower = [0.0, *d.bounds]
    upper = [*d.bounds, d.bounds[-1]]
    return sum(n * ((a + b) / 2.0) ** 2 for n, a, b in zip(d.counts, lower, upper, strict=True))
