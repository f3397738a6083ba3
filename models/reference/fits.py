"""Lines through samples: a plane without negative slopes, and a line with a bend.

Both by normal equations, as the reference solves them; so that where it rounds, this rounds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Protocol

from headrace.models.reference.retained import Features, Sample

HINGE_FROM = 6  # samples; fewer are a straight line
LEAST_WEIGHT_MS = 25.0  # shorter iterations weigh no more than those
SLACK = 1e-6  # a slope this little below zero is zero

Matrix = list[list[float]]


class Fit(Protocol):
    def at(self, x: Features) -> float: ...


@dataclass(frozen=True, slots=True)
class Plane:
    intercept: float
    slopes: tuple[float, ...]

    def at(self, x: Features) -> float:
        return self.intercept + sum(s * v for s, v in zip(self.slopes, x, strict=True))


@dataclass(frozen=True, slots=True)
class Hinge:
    """A line that bends at `knot`. The intercept may be negative."""

    intercept: float
    left: float
    right: float
    knot: float

    def at(self, x: Features) -> float:
        (v,) = x
        return self.intercept + self.left * min(v, self.knot) + self.right * max(0.0, v - self.knot)


def fit_ms(samples: Sequence[Sample], min_observations: int) -> Fit | None:
    """Milliseconds by features: a hinge for one feature and enough samples, else a plane. None: no usable fit."""
    n = len(samples)
    if n < min_observations or not samples:
        return None
    if len(samples[0][0]) == 1 and n >= HINGE_FROM:
        bent = hinge([(x[0], y) for x, y in samples])
        if bent is not None:
            return bent
    return nonnegative_plane(samples)


def hinge(points: Sequence[tuple[float, float]]) -> Hinge | None:
    """The best bend among the candidates, by the weighted error; the first of equals."""
    best, best_score = None, math.inf
    weights = [1.0 / max(y, LEAST_WEIGHT_MS) for _, y in points]
    for knot in knots([x for x, _ in points]):
        rows = [[1.0, x, max(0.0, x - knot)] for x, _ in points]
        solved = solve(rows, [y for _, y in points], weights)
        if solved is None:
            continue
        intercept, left, delta = solved
        right = left + delta
        if not all(map(math.isfinite, solved)) or left < -SLACK or right < -SLACK:
            continue
        found = Hinge(intercept, max(0.0, left), max(0.0, right), knot)
        errors = [((found.at((x,)) - y) * w) ** 2 for (x, y), w in zip(points, weights, strict=True)]
        score = math.sqrt(sum(errors) / len(errors))
        if score < best_score:
            best, best_score = found, score
    return best


def knots(xs: Iterable[float]) -> list[float]:
    """Where a bend is tried: four places by rank, eight by logarithm, strictly inside what was seen."""
    u = sorted(set(xs))
    m = len(u)
    if m < 3:
        return []
    found = [u[j * (m - 1) // 5] for j in range(1, 5)]
    if u[0] > 0 and u[-1] > u[0]:
        low, high = math.log(u[0]), math.log(u[-1])
        found += [math.exp(low + i / 9 * (high - low)) for i in range(1, 9)]
    distinct: list[float] = []
    for k in sorted(k for k in found if u[0] < k < u[-1]):
        if not distinct or abs(k - distinct[-1]) > 1e-9 * max(abs(k), abs(distinct[-1]), 1.0):
            distinct.append(k)
    return distinct


def nonnegative_plane(samples: Sequence[Sample]) -> Plane | None:
    """Least squares on every subset of the features; the best whose slopes are not negative."""
    n, axes = len(samples), len(samples[0][0])
    ys = [y for _, y in samples]
    best, least = None, math.inf
    for mask in range(2**axes):
        used = [bool(mask >> axis & 1) for axis in range(axes)]
        solved = solve([[1.0, *compress(x, used)] for x, _ in samples], ys)
        if solved is None or not all(map(math.isfinite, solved)) or min(solved[1:], default=0.0) < 0.0:
            continue
        found = iter(solved[1:])
        plane = Plane(solved[0], tuple(next(found) if use else 0.0 for use in used))
        error = sum((plane.at(x) - y) ** 2 for x, y in samples)
        if error < least:
            best, least = plane, error
    if best is not None and n > axes and max(best.slopes) <= 0.0:
        return None
    return best


def solve(rows: Matrix, ys: Sequence[float], weights: Sequence[float] | None = None) -> list[float] | None:
    """Weighted least squares; a singular system once more with a little ridge on all but the intercept."""
    if weights is not None:
        rows = [[w * v for v in row] for row, w in zip(rows, weights, strict=True)]
        ys = [w * y for y, w in zip(ys, weights, strict=True)]
    size = range(len(rows[0]))
    normal = [[sum(row[i] * row[j] for row in rows) for j in size] for i in size]
    right = [sum(row[i] * y for row, y in zip(rows, ys, strict=True)) for i in size]
    found = _eliminate(normal, right)
    if found is None:
        ridge = 1e-9 * max(1.0, sum(abs(normal[i][i]) for i in size))
        for i in size[1:]:
            normal[i][i] += ridge
        found = _eliminate(normal, right)
    return found


def _eliminate(matrix: Matrix, right: Sequence[float]) -> list[float] | None:
    """Gauss-Jordan with partial pivoting. None: singular."""
    a = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    size = len(a)
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(a[i][column]))
        if not abs(a[pivot][column]) >= 1e-12:
            return None
        a[column], a[pivot] = a[pivot], a[column]
        a[column] = [v / a[column][column] for v in a[column]]
        for i in range(size):
            if i != column and a[i][column] != 0.0:
                a[i] = [v - a[i][column] * p for v, p in zip(a[i], a[column], strict=True)]
    return [row[-1] for row in a]
