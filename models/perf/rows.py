"""Rows: what iterations did, as columns, and which of them can be believed."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.models.perf.line import Array

MOST = 1e9  # requests or tokens in one iteration: more is a broken counter
SHORTEST_S, LONGEST_S = 1e-6, 600.0  # outside it is a broken clock, a hang or a clock that jumped, not a speed

FEW = 8  # rows up to which plain numbers are quicker than arrays

Column = Sequence[float] | NDArray[np.float64] | NDArray[np.int64]
Columns = tuple[Column, Column, Column, Column, Column]

PREFILL_REQUESTS: Final = 0
PREFILL_TOKENS: Final = 1
DECODE_REQUESTS: Final = 2
DECODE_KV: Final = 3
WALL_TIME: Final = 4
IDLE: Final = 5  # idle records that had been seen when this row came
COLUMNS: Final = 6
_LIMITS: Final = np.array([MOST, MOST, MOST, MOST, LONGEST_S])[:, None]


def length_of(columns: Columns) -> int:
    """How many rows there are. Raises ValueError where the columns differ in length."""
    lengths = [len(c) for c in columns]
    shortest = min(lengths)
    if shortest != max(lengths):
        raise ValueError(f"the five columns must be of equal length, one row per iteration; got {lengths}")
    return shortest


def sift(columns: Columns, idle_before: int) -> tuple[Array, int]:
    """(the rows to learn from, shape (6, n); how many idle records have been seen now).

    Believed is a row of finite, non-negative, sane numbers with a wall time and some work, and no tokens without
    requests. An idle record has no work and no wall time.
    """
    rows = np.array(columns, dtype=np.float64)
    sane = ((rows >= 0) & (rows <= _LIMITS)).all(axis=0)  # NaN fails both
    work = rows[PREFILL_TOKENS] + rows[DECODE_REQUESTS]
    orphans = ((rows[PREFILL_REQUESTS] == 0) & (rows[PREFILL_TOKENS] > 0)) | (
        (rows[DECODE_REQUESTS] == 0) & (rows[DECODE_KV] > 0)
    )
    believed = sane & ~orphans & (work > 0) & (rows[WALL_TIME] >= SHORTEST_S)
    idle = idle_before + np.cumsum(~(rows != 0).any(axis=0))
    return np.vstack([rows, idle])[:, believed], int(idle[-1]) if len(idle) else idle_before


def sift_few(columns: Columns, idle: int) -> tuple[list[tuple[float, ...]], int]:
    """The same by the same rule for few rows, as a list of them: without what an array costs before it begins."""
    believed: list[tuple[float, ...]] = []
    for row in zip(*columns, strict=True):
        requests, tokens, decodes, kv, wall = row
        if not (0 <= requests <= MOST and 0 <= tokens <= MOST and 0 <= decodes <= MOST and 0 <= kv <= MOST):
            continue  # NaN too
        if not (requests or tokens or decodes or kv or wall):
            idle += 1
        elif (tokens and not requests) or (kv and not decodes):
            continue
        elif SHORTEST_S <= wall <= LONGEST_S and (tokens or decodes):
            believed.append((*row, idle))
    return believed, idle
