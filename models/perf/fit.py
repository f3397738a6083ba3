"""A line through cells: least squares where no price and no fixed cost may be negative.

Exact and deterministic: with at most two features there are at most eight sets of free coefficients, and the best of
those whose solution is non-negative is the answer (each is solved anew, nothing is clamped afterwards).
"""

from dataclasses import dataclass, replace
from itertools import product
from math import sqrt

import numpy as np

from headrace.models.perf.cells import Cells, pairs_of
from headrace.models.perf.line import FLOOR_S, Array

STALE_ROWS = 4096.0  # rows of its kind after which a cell that none of them touched begins to count for less
WEIGHT_FLOOR_S = 0.025  # relative error counts for iterations above this, absolute error below it
FAR_OFF = 4.0  # times above or below the line, from where a cell is doubted
APART = 1e-6  # share of two features' variance that the other one must leave unexplained, or they move together
EXACT = 1e-12  # relative variance that is rounding, not noise
PRIOR = 0.01  # how firmly an unmeasured fixed cost is held at zero: a standard deviation of ten mean times
SURE = 3.0  # standard errors below zero that prove a price to be negative


@dataclass(frozen=True, slots=True)
class Moments:
    """Rows in all cells, weighted means, and weighted mean products of deviations, scaled by the means."""

    rows: float
    mean_x: tuple[float, ...]
    mean_y: float
    xx: tuple[tuple[float, ...], ...]
    xy: tuple[float, ...]
    yy: float


@dataclass(frozen=True, slots=True)
class Fit:
    """y = intercept + slopes . x, in seconds; `noise` is the relative standard deviation of the residuals."""

    intercept: float
    slopes: tuple[float, ...]
    noise: float


@dataclass(frozen=True, slots=True)
class Table:
    """The n cells that have rows: rows, what a row counts, means and co-moments as in `Cells`."""

    rows: Array  # (n,)
    share: Array  # (n,)
    mean: Array  # (n, k)
    moment: Array  # (n, k(k+1)/2)

    def moments(self) -> Moments:
        """The weighted sums over all cells."""
        [sums] = self.moments_of(self.mean[None], self.moment[None])
        return sums

    def moments_of(self, mean: Array, moment: Array) -> list[Moments]:
        """The weighted sums for m other views of the same cells, shapes (m, n, k) and (m, n, k(k+1)/2), at once."""
        weight = self.share * self.rows
        rows, total = float(self.rows.sum()), float(weight.sum())
        centre = np.einsum("n,mnk->mk", weight, mean) / total
        away = mean - centre[:, None]
        between = np.einsum("n,mni,mnj->mij", weight, away, away)
        within = np.einsum("n,mnp->mp", self.share, moment)
        sums = zip(centre.tolist(), between.tolist(), within.tolist(), strict=True)
        return [_moments(rows, total, *of_one) for of_one in sums]


def _moments(
    rows: float, total: float, centre: list[float], between: list[list[float]], within: list[float]
) -> Moments:
    scale = [c if c > 0 else 1.0 for c in centre]
    together = {
        (i, j): (inside + between[i][j]) / (total * scale[i] * scale[j])
        for (i, j), inside in zip(pairs_of(len(centre)), within, strict=True)
    }
    d = len(centre) - 1
    return Moments(
        rows=rows,
        mean_x=tuple(centre[:d]),
        mean_y=centre[d],
        xx=tuple(tuple(together[min(i, j), max(i, j)] for j in range(d)) for i in range(d)),
        xy=tuple(together[i, d] for i in range(d)),
        yy=together[d, d],
    )


def table_of(cells: Cells, *, relative: bool) -> Table | None:
    """The cells to fit a line through; None where there are none, or none that a line can go through.

    With `relative`, relative errors above `WEIGHT_FLOOR_S` count, else absolute ones. Cells that a first, resistant
    line finds far off (a few rows of a stall in a load hardly seen) count for less.
    """
    if not cells.seen:
        return None
    used = np.flatnonzero(cells.count)
    mean = cells.mean[used]
    fresh = 1.0 / np.maximum(1.0, (cells.seen - cells.last[used]) / STALE_ROWS)
    by_error = fresh * (WEIGHT_FLOOR_S / np.maximum(mean[:, -1], WEIGHT_FLOOR_S)) ** 2
    table = Table(cells.count[used], by_error, mean, cells.moment[used])
    first = fit(table.moments())
    if first is None:
        return None
    line = first.intercept + sum(x * slope for x, slope in zip(mean.T, first.slopes, strict=False))
    off = np.maximum(line / mean[:, -1], mean[:, -1] / np.maximum(line, FLOOR_S))
    trust = np.minimum(1.0, FAR_OFF / off) ** 2
    return replace(table, share=(by_error if relative else fresh) * trust)


def fit(m: Moments) -> Fit | None:
    """The non-negative line of least squares; None when every price is surely negative: more work took less time.

    Where the data cannot tell the fixed cost from the prices (loads that hardly vary), the fixed cost is held near
    zero: twice the load is then expected to take twice as long, and capacity is never better than what was seen.
    """
    noise = noise_of(m)
    prior = PRIOR * noise**2 / m.rows + EXACT
    best = _best(m, prior)
    if not any(best.slopes):
        best_flat = _flat(m)
        if best_flat is None:
            return None
        best = best_flat
    intercept = (1.0 - sum(best.slopes)) / (1.0 + prior) if best.free_intercept else 0.0
    slopes = tuple(m.mean_y * s / x if x > 0 else 0.0 for s, x in zip(best.slopes, m.mean_x, strict=True))
    return Fit(m.mean_y * intercept, slopes, noise)


def noise_of(m: Moments) -> float:
    """Relative standard deviation of the residuals of the best non-negative line."""
    free = max(1.0, m.rows - len(m.mean_x) - 1)
    return sqrt(max(0.0, _best(m, EXACT).loss) * m.rows / free)


@dataclass(frozen=True, slots=True)
class _Candidate:
    slopes: tuple[float, ...]  # scaled: the share of the mean time that this feature pays for at its mean
    free_intercept: bool
    loss: float


def _best(m: Moments, prior: float) -> _Candidate:
    """The best non-negative solution. `prior` is the weight of one imagined row: no load, no time."""
    everything = _solve(m, tuple(range(len(m.mean_x))), True, prior) if _apart(m) else None
    if everything is not None:
        return everything  # nothing had to be held at zero, and the loss is convex: no other set does better
    best: _Candidate | None = None
    for free_intercept, *chosen in product((True, False), *[(False, True)] * len(m.mean_x)):
        candidate = _solve(m, tuple(i for i, c in enumerate(chosen) if c), free_intercept, prior)
        if candidate is not None and (best is None or candidate.loss < best.loss):
            best = candidate
    assert best is not None  # the empty set with a free intercept is always a solution
    return best


def _apart(m: Moments) -> bool:
    """Can the data tell the features from one another, with digits to spare?"""
    if len(m.mean_x) < 2:
        return True
    (a, b), (_, d) = m.xx
    return a * d - b * b > APART * a * d


def _solve(m: Moments, chosen: tuple[int, ...], free_intercept: bool, prior: float) -> _Candidate | None:
    """Least squares on the `chosen` features; None where a coefficient is negative or nothing determines one.

    With means scaled to 1, the residual of a row is dy - s.dx + (1 - sum s - intercept); the best intercept, held by
    the prior, leaves origin * (1 - sum s)^2 of it, where origin = prior / (1 + prior), or 1 without an intercept.
    """
    origin = prior / (1.0 + prior) if free_intercept else 1.0
    tie = 0.01 * prior  # between features that always move together, equal shares
    if any(m.mean_x[i] <= 0 for i in chosen):
        return None
    solution = _stationary(m, chosen, origin, tie)
    if solution is None or any(s < 0 for s in solution):
        return None
    rest = 1.0 - sum(solution)
    if free_intercept and rest < 0:
        return None
    loss = m.yy + origin * rest * rest + tie * sum(s * s for s in solution)
    slopes = [0.0] * len(m.mean_x)
    for i, s in zip(chosen, solution, strict=True):
        slopes[i] = s
        loss += s * (sum(m.xx[i][j] * t for j, t in zip(chosen, solution, strict=True)) - 2 * m.xy[i])
    return _Candidate(tuple(slopes), free_intercept, loss)


def _stationary(m: Moments, chosen: tuple[int, ...], origin: float, tie: float) -> tuple[float, ...] | None:
    """Where the loss of :func:`_solve` has no slope, of any sign; None where the features determine nothing."""
    if not chosen:
        return ()
    i, j = chosen[0], chosen[-1]
    a, b = m.xx[i][i] + origin + tie, m.xy[i] + origin
    if i == j:
        return (b / a,)
    across, d, e = m.xx[i][j] + origin, m.xx[j][j] + origin + tie, m.xy[j] + origin
    det = a * d - across * across
    return None if det <= 0 else ((b * d - across * e) / det, (a * e - b * across) / det)


def _flat(m: Moments) -> _Candidate | None:
    """No price is positive: the best measured one is taken at one standard error, or refused if surely negative."""
    slopes = [0.0] * len(m.mean_x)
    varied = [i for i in range(len(m.mean_x)) if m.xx[i][i] > EXACT]
    if varied:
        i = max(varied, key=lambda v: m.xx[v][v])
        slope = m.xy[i] / m.xx[i][i]
        noise2 = max(0.0, m.yy - slope * m.xy[i]) * m.rows / max(1.0, m.rows - 2.0)
        error = sqrt(noise2 / (m.xx[i][i] * m.rows))
        if slope < -SURE * error - EXACT:
            return None
        slopes[i] = min(1.0, error)
    return _Candidate(tuple(slopes), True, m.yy)
