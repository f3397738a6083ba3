"""A prefill line with one bend: flat while small prompts leave the GPU half idle, steep when it is busy.

The bend lies on an edge of the grid. There every cell is on one side, so max(0, x - bend) is a straight line within
each cell, and the cells' sums give the bent fit as exactly as the straight one. Prices only rise: the second slope is
the first plus something non-negative.
"""

from dataclasses import dataclass
from math import inf, log

import numpy as np

from headrace.models.perf.cells import Cells, edges
from headrace.models.perf.fit import EXACT, Fit, Moments, Table, fit, noise_of, table_of
from headrace.models.perf.line import Array

GOOD_ENOUGH = 0.01  # relative noise below which a straight line is left alone
CELLS_EACH_SIDE = 2
NUMBERS_MORE = 3  # a bend has three more than a straight line: a price, its place, and that it was chosen


@dataclass(frozen=True, slots=True)
class Bent:
    """`fit` has the slope and, where there is a bend, what is added beyond it; `bend` is in tokens."""

    fit: Fit
    bend: float = inf


def fit_bent(cells: Cells) -> Bent | None:
    """The line through the cells of one feature, bent once where that explains much more (Bayesian criterion)."""
    table = table_of(cells, relative=True)
    straight = None if table is None else fit(table.moments())
    if table is None or straight is None:
        return None
    if straight.noise < GOOD_ENOUGH:
        return Bent(straight)
    best: tuple[float, float, Moments | None] = (straight.noise, inf, None)
    [axis] = cells.grid.axes
    bends = _places(table, edges(*axis))
    for bend, moments in zip(bends.tolist(), _hinged(table, bends), strict=True):
        best = min(best, (noise_of(moments), bend, moments), key=lambda found: found[0])
    noise, bend, hinged = best
    rows = float(table.rows.sum())
    if hinged is None or 2 * rows * log(straight.noise / max(noise, EXACT)) <= NUMBERS_MORE * log(rows):
        return Bent(straight)
    bent = fit(hinged)
    return Bent(straight) if bent is None else Bent(bent, bend)


def _places(table: Table, edges_of_cells: Array) -> Array:
    """The edges with enough cells on both sides, shape (m,)."""
    below = (table.mean[:, 0] < edges_of_cells[:, None]).sum(axis=1)
    enough: Array = edges_of_cells[np.minimum(below, len(table.rows) - below) >= CELLS_EACH_SIDE]
    return enough


def _hinged(table: Table, bends: Array) -> list[Moments]:
    """For each bend the sums with a second feature, max(0, x - bend), between the first and the time."""
    x, y = table.mean.T
    xx, xy, yy = table.moment.T
    beyond = x >= bends[:, None]  # (m, n)
    h, hx, hy = np.where(beyond, x - bends[:, None], 0.0), np.where(beyond, xx, 0.0), np.where(beyond, xy, 0.0)
    mean = np.stack(np.broadcast_arrays(x, h, y), axis=-1)
    return table.moments_of(mean, np.stack(np.broadcast_arrays(xx, hx, xy, hx, hy, yy), axis=-1))
