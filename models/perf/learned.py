"""Learned: everything that a sequence of iterations has taught, by kind of iteration."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from headrace.models.perf import rows as r
from headrace.models.perf.cells import Cells, Grid
from headrace.models.perf.line import Array
from headrace.models.perf.tally import Tally

IDLE_HALF_LIFE = 64.0  # idle records that halve the mean prompt length, and its weight beside newer prompts
IDLE_MOST = 50.0  # half-lives; then it is as good as nothing, and stays a number


class Kind(StrEnum):
    """By what an iteration did."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


FEATURES: dict[Kind, tuple[int, ...]] = {
    Kind.PREFILL: (r.PREFILL_TOKENS,),
    Kind.DECODE: (r.DECODE_REQUESTS, r.DECODE_KV),
    Kind.MIXED: (r.PREFILL_TOKENS, r.DECODE_KV),
}
RANGES = {r.PREFILL_TOKENS: (4.0, 15.0), r.DECODE_REQUESTS: (0.0, 10.0), r.DECODE_KV: (8.0, 23.0)}  # powers of two
PRICES = {
    r.PREFILL_TOKENS: "per_prefill_token_s",
    r.DECODE_REQUESTS: "per_decode_request_s",
    r.DECODE_KV: "per_kv_token_s",
}


@dataclass(frozen=True, slots=True)
class Learned:
    """Everything that a sequence of rows has taught; a value."""

    cells: Mapping[Kind, Cells]
    isl: Tally
    decode_length: Tally
    prefill_tokens: Tally
    idle_at_prompt: float = 0.0  # idle records that had been seen at the newest prefill

    @classmethod
    def nothing(cls, buckets: int) -> "Learned":
        return cls({kind: Cells.empty(grid) for kind, grid in grids(buckets).items()}, Tally(), Tally(), Tally())

    @property
    def tallies(self) -> dict[str, Tally]:
        return {"isl": self.isl, "decode_length": self.decode_length, "prefill_tokens": self.prefill_tokens}

    def fold(self, rows: Array) -> "Learned":
        """This and the believed `rows`, shape (6, n)."""
        prefills, decodes = rows[r.PREFILL_TOKENS] > 0, rows[r.DECODE_REQUESTS] > 0
        of = {Kind.PREFILL: prefills & ~decodes, Kind.DECODE: decodes & ~prefills, Kind.MIXED: prefills & decodes}
        cells = {
            k: c.fold(rows[:, of[k]][[*FEATURES[k], r.WALL_TIME]]) if of[k].any() else c for k, c in self.cells.items()
        }
        isl, idle, length, beside = self.isl, self.idle_at_prompt, self.decode_length, self.prefill_tokens
        if prefills.any():
            p = rows[:, prefills]
            idle = float(p[r.IDLE, -1])
            weights = np.exp2((p[r.IDLE] - idle) / IDLE_HALF_LIFE)
            isl = isl.fold(p[r.PREFILL_TOKENS] / p[r.PREFILL_REQUESTS], weights, self.faded(idle))
        if decodes.any():
            d = rows[:, decodes]
            length = length.fold(d[r.DECODE_KV] / d[r.DECODE_REQUESTS])
            beside = beside.fold(d[r.PREFILL_TOKENS])
        return Learned(cells, isl, length, beside, idle)

    def faded(self, idle: float) -> float:
        """What the prompts seen so far still count for when `idle` idle records have been seen; above 0."""
        half_lives = min((idle - self.idle_at_prompt) / IDLE_HALF_LIFE, IDLE_MOST)
        return float(0.5**half_lives)


def grids(buckets: int) -> dict[Kind, Grid]:
    return {
        kind: Grid(tuple((*RANGES[f], buckets if len(features) == 1 else buckets // 2) for f in features))
        for kind, features in FEATURES.items()
    }
