"""A prefill line with one bend: flat while small prompts leave the GPU half idle, steep when it is busy.

The bend lies on an edge of the grid. There every cell is on one side, so max(0, x - bend) is a straight line within
each cell, and the cells' sums give the bent fit as exactly as the straight one. Prices only rise: the second slope is
the first plus something non-negative.
"""

from dataclasses import dataclass
from math import inf, log

import numpy as np

from headrace.models.perf.cells import Cells, edges
from headrace.models.perf.fit import EXACT, Fit, Table, fit, noise_of, table_of

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
    noise, bend = straight.noise, inf
    for edge in edges(*cells.grid.axes[0]).tolist():
        below = int((table.mean[:, 0] < edge).sum())
        if min(below, len(table.rows) - below) >= CELLS_EACH_SIDE:
            found = noise_of(_hinged(table, edge).moments())
            noise, bend = min((noise, bend), (found, edge))
    rows = float(table.rows.sum())
    if 2 * rows * log(straight.noise / max(noise, EXACT)) <= NUMBERS_MORE * log(rows):
        return Bent(straight)
    bent = fit(_hinged(table, bend).moments())
    return Bent(straight) if bent is None else Bent(bent, bend)


def _hinged(table: Table, bend: float) -> Table:
    """The table with a second feature, max(0, x - bend), between the first and the time."""
    x, y = table.mean.T
    xx, xy, yy = table.moment.T
    beyond = x >= bend
    hx, hy = np.where(beyond, xx, 0.0), np.where(beyond, xy, 0.0)
    mean = np.stack([x, np.where(beyond, x - bend, 0.0), y], axis=1)
    return Table(table.rows, table.share, mean, np.stack([xx, hx, xy, hx, hy, yy], axis=1))
