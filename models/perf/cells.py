"""Cells: what a kind of iteration has shown so far, in bounded memory.

The load (one or two features) is laid on a fixed logarithmic grid. A cell keeps no rows, only their count, means and
co-moments, so a straight line fitted to the cells is the line fitted to the rows. The count of a cell is capped: once
it is full, every new row takes the weight of old ones. Rare loads are so remembered while frequent ones stay fresh.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.models.perf.line import Array

CELL_ROWS = 64.0  # rows that a cell counts for at most
WARM_ROWS = 8.0  # from here a cell's own spread tells what an outlier is
COLD_ROWS = 4  # from here the median of a cold cell's new rows does
SPREADS = 4.0  # standard deviations that a wall time may be away from what is expected,
SLACK = 0.5  # or this share of the mean, if that is more;
COLD_SLACK = 1.0  # of the median, where a cold cell's own new rows are all there is
TINY = 1e-300
MAD_TO_SPREAD = 1.4826  # median absolute deviation to standard deviation, of a normal distribution


@dataclass(frozen=True, slots=True)
class Grid:
    """A fixed logarithmic grid: each axis goes from 2^low to 2^high in `steps` cells; the outer cells are open."""

    axes: tuple[tuple[float, float, int], ...]  # (low, high, steps) per feature

    @property
    def cells(self) -> int:
        return int(np.prod([steps for _, _, steps in self.axes]))

    def cell_of(self, x: Array) -> NDArray[np.int64]:
        """The cell of each row; `x` has shape (features, rows), any value >= 0."""
        cell = np.zeros(x.shape[1], dtype=np.int64)
        for column, (low, high, steps) in zip(x, self.axes, strict=True):
            cell = cell * steps + np.searchsorted(edges(low, high, steps), column, side="right")
        return cell


@cache
def edges(low: float, high: float, steps: int) -> Array:
    """The bounds between the cells of an axis, shape (steps - 1,); compared with, so that every machine agrees."""
    return np.array([2.0 ** (low + (high - low) * i / steps) for i in range(1, steps)])


@cache
def pairs_of(columns: int) -> tuple[tuple[int, int], ...]:
    """The pairs of columns that have a co-moment, in its order."""
    return tuple(combinations_with_replacement(range(columns), 2))


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows (x1..xd, y) summed up per cell. A value: `fold` gives a new one. y is the wall time in seconds.

    Shapes, with c cells and k = d + 1 columns: `count` and `last` (c,), `mean` (c, k), `moment` (c, k(k+1)/2) holds the
    sums of (a - mean a)(b - mean b) for each pair of columns in the order of `pairs_of`; `last` is what `seen` was when
    the cell got its newest row.
    """

    grid: Grid
    seen: int
    count: Array
    last: Array
    mean: Array
    moment: Array

    @classmethod
    def empty(cls, grid: Grid) -> "Cells":
        k = len(grid.axes) + 1
        c = grid.cells
        return cls(grid, 0, np.zeros(c), np.zeros(c), np.zeros((c, k)), np.zeros((c, k * (k + 1) // 2)))

    def fold(self, z: Array) -> "Cells":
        """These cells and the rows of `z`, shape (k, rows), wall times last; outliers are pulled in first."""
        if not z.shape[1]:
            return self
        cell, c = self.grid.cell_of(z[:-1]), len(self.count)
        columns = [*z[:-1], self._within_reach(cell, z)]
        rows = np.bincount(cell, minlength=c).astype(np.float64)
        per_row = 1.0 / np.maximum(rows, 1.0)
        new_mean = [np.bincount(cell, column, c) * per_row for column in columns]
        away = [column - m[cell] for column, m in zip(columns, new_mean, strict=True)]
        total = np.maximum(self.count + rows, 1.0)
        gap = [m - self.mean[:, i] for i, m in enumerate(new_mean)]  # of a cell without new rows it is not used
        both = self.count * rows / total
        keep = np.minimum(1.0, CELL_ROWS / total)
        moment = [  # of two sets together: Chan, Golub and LeVeque 1979
            keep * (self.moment[:, p] + np.bincount(cell, away[i] * away[j], c) + gap[i] * gap[j] * both)
            for p, (i, j) in enumerate(pairs_of(len(columns)))
        ]
        mean = self.mean + np.stack(gap, axis=1) * (rows / total)[:, None]
        seen = self.seen + z.shape[1]
        last = np.where(rows > 0, float(seen), self.last)
        return Cells(self.grid, seen, np.minimum(self.count + rows, CELL_ROWS), last, mean, np.stack(moment, axis=1))

    def beside(self, other: "Cells", weight: float) -> "Cells":
        """These cells and those of `other`, whose rows count `weight` each (0 to 1) and never go stale."""
        if not other.seen:
            return self
        rows = other.count * weight
        total = self.count + rows
        share = rows / np.maximum(total, TINY)
        gap = other.mean - self.mean
        both = self.count * share
        moment = [
            self.moment[:, p] + weight * other.moment[:, p] + gap[:, i] * gap[:, j] * both
            for p, (i, j) in enumerate(pairs_of(self.mean.shape[1]))
        ]
        mean = self.mean + gap * share[:, None]
        seen = self.seen + other.seen
        last = np.where(self.count > 0, self.last + other.seen, float(seen))
        return Cells(self.grid, seen, total, last, mean, np.stack(moment, axis=1))

    def _within_reach(self, cell: NDArray[np.int64], z: Array) -> Array:
        """The wall times of `z`, outliers pulled to the edge of what their cell and load allow.

        Through a cell's mean go lines between flat and proportional to the load; allowed is what any of them expects,
        give or take `SPREADS` standard deviations. A lasting change still gets through, in steps.
        """
        centre = self.mean.T.copy()  # (k, c)
        spread = np.sqrt(self.moment[:, -1] / np.maximum(self.count, WARM_ROWS))
        reach = np.maximum(SPREADS * spread, SLACK * centre[-1])
        for c in set(cell[self.count[cell] < WARM_ROWS].tolist()):
            mine = z[:, cell == c]
            reach[c] = np.inf
            if mine.shape[1] >= COLD_ROWS:
                centre[:, c] = np.median(mine, axis=1)
                spread_c = MAD_TO_SPREAD * float(np.median(np.abs(mine[-1] - centre[-1, c])))
                reach[c] = max(SPREADS * spread_c, COLD_SLACK * centre[-1, c])
        times = z[:-1] / np.where(centre[:-1] > 0, centre[:-1], np.inf)[:, cell]
        expected, reach = centre[-1, cell], reach[cell]
        high = expected * np.maximum(1.0, times.max(axis=0)) + reach
        low = expected * np.minimum(1.0, times.min(axis=0)) - reach
        clipped: Array = np.minimum(np.maximum(z[-1], low), high)
        return clipped

    def to_state(self) -> dict[str, Any]:
        used = np.flatnonzero(self.count)
        return {
            "seen": self.seen,
            "cells": [
                [int(c), float(self.count[c]), float(self.last[c]), self.mean[c].tolist(), self.moment[c].tolist()]
                for c in used
            ],
        }

    @classmethod
    def from_state(cls, grid: Grid, state: dict[str, Any]) -> "Cells":
        """Raises KeyError, TypeError, ValueError or IndexError where `state` is not one of `to_state`."""
        cells = cls.empty(grid)
        for c, count, last, mean, moment in state["cells"]:
            cells.count[c], cells.last[c], cells.mean[c], cells.moment[c] = count, last, mean, moment
        return replace(cells, seen=int(state["seen"]))
