"""Cells: what a kind of iteration has shown so far, in bounded memory.

The load (one or two features) is laid on a fixed logarithmic grid. A cell keeps no rows, only their count, means and
co-moments, so a straight line fitted to the cells is the line fitted to the rows. The count of a cell is capped: once
it is full, every new row takes the weight of old ones. Rare loads are so remembered while frequent ones stay fresh.
"""

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.models.perf.line import Array

CELL_ROWS = 64.0  # rows that a cell counts for at most
WARM_ROWS = 8.0  # from here a cell's own spread tells what an outlier is
COLD_ROWS = 4  # from here the median of a cold cell's new rows does
SPREADS = 4.0  # standard deviations that a wall time may be away from its cell's mean,
SLACK = 0.5  # or this share of the mean, if that is more
COLD_FACTOR = 4.0  # times the median, either way


@dataclass(frozen=True, slots=True)
class Grid:
    """A fixed logarithmic grid: each axis goes from 2^low to 2^high in `steps` cells; the outer cells are open."""

    axes: tuple[tuple[float, float, int], ...]  # (low, high, steps) per feature

    @property
    def cells(self) -> int:
        return int(np.prod([steps for _, _, steps in self.axes]))

    def cell_of(self, x: Array) -> NDArray[np.int64]:
        """The cell of each row; `x` has shape (rows, features), any value >= 0."""
        cell = np.zeros(len(x), dtype=np.int64)
        for column, (low, high, steps) in zip(x.T, self.axes, strict=True):
            step = np.floor((np.log2(np.maximum(column, 1.0)) - low) * (steps / (high - low)))
            cell = cell * steps + np.clip(step, 0, steps - 1).astype(np.int64)
        return cell


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows (x1..xd, y) summed up per cell. A value: `fold` gives a new one. y is the wall time in seconds.

    Shapes, with c cells and k = d + 1 columns: `count` and `last` (c,), `mean` (c, k), `moment` (c, k(k+1)/2) holds the
    sums of (a - mean a)(b - mean b) for each pair of columns in the order of `pairs`; `last` is what `seen` was when
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

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(combinations_with_replacement(range(self.mean.shape[1]), 2))

    def fold(self, z: Array) -> "Cells":
        """These cells and the rows of `z`, shape (rows, k), last column the wall time; outliers are pulled in first."""
        if not len(z):
            return self
        touched, cell = np.unique(self.grid.cell_of(z[:, :-1]), return_inverse=True)
        columns = [*z.T[:-1], self._within_reach(touched, cell, z[:, -1])]
        rows = np.bincount(cell).astype(np.float64)
        new_mean = [np.bincount(cell, c) / rows for c in columns]
        away = [c - m[cell] for c, m in zip(columns, new_mean, strict=True)]
        count, last, mean, moment = self.count.copy(), self.last.copy(), self.mean.copy(), self.moment.copy()
        total = count[touched] + rows
        gap = [m - mean[touched, i] for i, m in enumerate(new_mean)]
        shrink = np.minimum(1.0, CELL_ROWS / total)
        for p, (i, j) in enumerate(self.pairs):  # Chan, Golub and LeVeque 1979: merge of two sets' co-moments
            between = gap[i] * gap[j] * (count[touched] * rows / total)
            moment[touched, p] = shrink * (moment[touched, p] + np.bincount(cell, away[i] * away[j]) + between)
        for i, g in enumerate(gap):
            mean[touched, i] += g * (rows / total)
        count[touched] = np.minimum(total, CELL_ROWS)
        seen = self.seen + len(z)
        last[touched] = seen
        return replace(self, seen=seen, count=count, last=last, mean=mean, moment=moment)

    def _within_reach(self, touched: NDArray[np.int64], cell: NDArray[np.int64], y: Array) -> Array:
        """Wall times pulled to the edge of what their cell allows; a lasting change still gets through, in steps."""
        count, centre = self.count[touched], self.mean[touched, -1]
        variance = self.moment[touched, -1] / np.maximum(count, 1.0)
        reach = np.maximum(SPREADS * np.sqrt(np.maximum(variance, 0.0)), SLACK * centre)
        low, high = centre - reach, centre + reach
        for c in np.flatnonzero(count < WARM_ROWS):
            mine = y[cell == c]
            middle = float(np.median(mine)) if len(mine) >= COLD_ROWS else 0.0
            low[c], high[c] = (middle / COLD_FACTOR, middle * COLD_FACTOR) if middle else (0.0, np.inf)
        clipped: Array = np.clip(y, low[cell], high[cell])
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
