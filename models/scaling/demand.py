"""What arrives: rates, lengths and their spread, from the traffic windows of the last minutes."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from headrace.models.scaling.mix import Mix
from headrace.schemas.traffic import Distribution, TrafficWindow

SPREAD_KNOWN_AT = 30  # prompts, below which their spread is anybody's guess
PAIRS_KNOWN_AT = 10
WILDEST = 50.0  # index of dispersion; more is a jump, not noise
WIDEST = 16.0  # squared coefficient of variation


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One bucket of a histogram in a window."""

    lower: float  # bound
    count: int
    length: float  # of each, tokens


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """The part of a traffic window that sizing needs; sums, so that slices add up."""

    end: float  # seconds
    seconds: float
    requests: int
    isl_count: int
    isl_sum: float
    osl_count: int
    osl_sum: float
    isl_parts: tuple[Part, ...] = ()  # empty without a histogram
    osl_parts: tuple[Part, ...] = ()


def slice_of(w: TrafficWindow) -> Slice | None:
    """None where the arrivals are unknown."""
    if w.requests is None or w.end <= w.start:
        return None
    isl, osl = _sums(w.isl), _sums(w.osl)
    return Slice(w.end, w.end - w.start, w.requests, *isl, *osl, parts_of(w.isl), parts_of(w.osl))


def parts_of(d: Distribution | None) -> tuple[Part, ...]:
    """The buckets of a histogram that hold anything, each with a length for all that is in it.

    All observations stand at the same fraction of their bucket's width, the one with which their mean is the mean that
    was measured; where none is, at the end that comes next to it. The open bucket stands at its lower bound.
    """
    if d is None or d.mean is None or not d.bounds or not sum(d.counts):
        return ()
    held = [(a, b - a, n) for a, b, n in zip([0.0, *d.bounds], [*d.bounds, d.bounds[-1]], d.counts, strict=True) if n]
    lowest, widths = sum(n * a for a, _, n in held), sum(n * w for _, w, n in held)
    wanted = d.mean * sum(n for _, _, n in held) - lowest
    fraction = min(1.0, max(0.0, wanted / widths)) if widths > 0 else 0.0
    return tuple(Part(a, n, a + fraction * w) for a, w, n in held)


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


def prompt_mix(slices: Iterable[Slice]) -> Mix | None:
    """How unequal prompts are; None where no histogram tells, or of fewer than `SPREAD_KNOWN_AT` prompts."""
    return _mix(part for s in slices for part in s.isl_parts)


def answer_cv2(slices: Iterable[Slice]) -> float | None:
    """Squared coefficient of variation of answers, at most `WIDEST`; None where `prompt_mix` would be."""
    found = _mix(part for s in slices for part in s.osl_parts)
    return None if found is None else min(WIDEST, found.cv2)


def _mix(parts: Iterable[Part]) -> Mix | None:
    """Of the buckets of many windows, those with the same bound put together."""
    found = _joined(parts)
    if sum(p.count for p in found) < SPREAD_KNOWN_AT or sum(p.count * p.length for p in found) <= 0:
        return None
    return Mix.of([p.length for p in found], [p.count for p in found])


def _joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """One part a bound."""
    counts: dict[float, int] = {}
    tokens: dict[float, float] = {}
    for p in parts:
        counts[p.lower] = counts.get(p.lower, 0) + p.count
        tokens[p.lower] = tokens.get(p.lower, 0.0) + p.count * p.length
    return tuple(Part(bound, n, tokens[bound] / n) for bound, n in counts.items())


def together(slices: Sequence[Slice]) -> Slice:
    """One slice of several, the newest first."""
    isl, osl = (part for s in slices for part in s.isl_parts), (part for s in slices for part in s.osl_parts)
    return msgspec.structs.replace(_sum(slices), isl_parts=_joined(isl), osl_parts=_joined(osl))


def _sum(slices: Sequence[Slice]) -> Slice:
    """The same without histograms."""
    return Slice(
        end=slices[0].end,
        seconds=sum(s.seconds for s in slices),
        requests=sum(s.requests for s in slices),
        isl_count=sum(s.isl_count for s in slices),
        isl_sum=sum(s.isl_sum for s in slices),
        osl_count=sum(s.osl_count for s in slices),
        osl_sum=sum(s.osl_sum for s in slices),
    )


def _sums(d: Distribution | None) -> tuple[int, float]:
    return (0, 0.0) if d is None or not d.count or d.mean is None else (d.count, d.count * d.mean)
