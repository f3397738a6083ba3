"""EngineModel: the wall time of an iteration, learned online from what the engines of one role did."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.models.perf import rows as r
from headrace.models.perf.bend import fit_bent
from headrace.models.perf.cells import Cells
from headrace.models.perf.fit import fit, table_of
from headrace.models.perf.learned import FEATURES, PRICES, Learned, grids
from headrace.models.perf.learned import Kind as Kind
from headrace.models.perf.line import Line
from headrace.models.perf.rows import Column
from headrace.models.perf.tally import Tally
from headrace.schemas.errors import StateError

CHUNK_ROWS = 512  # rows are folded in blocks of this size, wherever the calls cut them
OFTEN_ROWS = 128  # rows after which prices are looked at anew; less at first: an eighth of the rows there are
FADE_ROWS = 64.0  # live rows of a kind after which a row known beforehand counts a quarter
FEWEST_BEFOREHAND = 3  # rows known beforehand that make a kind ready
STATE_VERSION = 1


@dataclass(slots=True)
class _View:
    """What is learned, most of the rows still waiting included, and the lines already asked for."""

    learned: Learned
    waiting: int  # rows of those that wait which are included
    due: int  # rows learned from at which it is out of date
    lines: dict[Kind, Line | None] = field(default_factory=dict)


class EngineModel:
    """Online regression of iteration wall time for one role's engines (all workers of the role pooled).

    A kind of iteration is ready after `min_observations` rows of it. `buckets` is the number of cells for one feature;
    for two features each axis has half as many. The result depends on the rows and their order alone: not on how calls
    cut them, nor on when it is asked. A question after every row is no fit after every row: prices and means are those
    after each of the first 16 rows, then every second, every fourth and so on, at last every 128th. Where rows are rare
    that would be long ago; `settle` takes all of them in.
    """

    def __init__(self, *, min_observations: int = 5, buckets: int = 16) -> None:
        if min_observations < 1 or buckets < 2:
            raise ValueError(f"min_observations ({min_observations}) must be >= 1 and buckets ({buckets}) >= 2")
        self._min_observations = min_observations
        self._buckets = buckets
        self._learned = Learned.nothing(buckets)
        self._beforehand = Learned.nothing(buckets)  # its cells alone are looked at
        self._waiting = np.empty((r.COLUMNS, CHUNK_ROWS))
        self._waits = 0
        self._rows = 0  # learned from
        self._idle = 0  # idle records seen
        self._view: _View | None = None
        self.revision = 0  # rows learned from; rises whenever the fit may have changed

    def learn(
        self,
        prefill_requests: Column,
        prefill_tokens: Column,
        decode_requests: Column,
        decode_kv_tokens: Column,
        wall_time_s: Column,
    ) -> None:
        """Learn from iterations: one row each, columns of equal length (counts; seconds).

        Skipped are idle records, wall times below 1 us or above 10 min, numbers that are negative, not finite or
        absurd, and tokens without requests: a bad row spoils only itself. Raises ValueError where lengths differ.
        """
        columns = (prefill_requests, prefill_tokens, decode_requests, decode_kv_tokens, wall_time_s)
        if r.length_of(columns) <= r.FEW:
            self._learn_few(columns)
            return
        good, self._idle = r.sift(columns, self._idle)
        self._rows += good.shape[1]
        self.revision += good.shape[1]
        while good.shape[1]:
            take = min(CHUNK_ROWS - self._waits, good.shape[1])
            self._waiting[:, self._waits : self._waits + take] = good[:, :take]
            self._waits += take
            good = good[:, take:]
            self._fold_full()

    def _learn_few(self, columns: r.Columns) -> None:
        few, self._idle = r.sift_few(columns, self._idle)
        self._rows += len(few)
        self.revision += len(few)
        for row in few:
            self._waiting[:, self._waits] = row
            self._waits += 1
            self._fold_full()

    def _fold_full(self) -> None:
        if self._waits == CHUNK_ROWS:
            self._learned, self._waits, self._view = self._learned.fold(self._waiting), 0, None

    def know_beforehand(
        self,
        prefill_requests: Column,
        prefill_tokens: Column,
        decode_requests: Column,
        decode_kv_tokens: Column,
        wall_time_s: Column,
    ) -> None:
        """Take iterations that were measured or computed before any came, in place of those known beforehand so far.

        They give prices and no means: a sweep over loads says nothing of the requests that will come. Each counts one
        row at first, a quarter when 64 live rows of its kind have come, a ninth after 128, and so on: live rows take
        over wherever they are, and what they never show is still known. Columns and errors are those of `learn`.
        """
        columns = (prefill_requests, prefill_tokens, decode_requests, decode_kv_tokens, wall_time_s)
        r.length_of(columns)
        rows, _ = r.sift(columns, 0)
        self._beforehand = Learned.nothing(self._buckets).fold(rows)
        self._view = None
        self.revision += max(1, rows.shape[1])

    @property
    def live_share(self) -> float | None:
        """The part of what is known that live rows make up, 0 to 1; None where nothing is known."""
        live = beforehand = 0.0
        for kind, cells in self._now().learned.cells.items():
            live += float(cells.count.sum())
            beforehand += float(self._beforehand.cells[kind].count.sum()) * _fade(cells.seen)
        return live / (live + beforehand) if live + beforehand else None

    def settle(self) -> None:
        """Let every row count from now on: before a decision. It changes what is answered, not what is learned."""
        self._take_in(self._waits)

    def idle(self, records: int = 1) -> None:
        """Count idle records that are not passed to `learn`: each ages the mean prompt length a little (dynamo#9756).

        For many engines, count one for the role when all of them are idle, not one each: else the length of the last
        prompts is gone within seconds.
        """
        self._idle += records

    @property
    def min_observations(self) -> int:
        """Rows of a kind from which it is ready."""
        return self._min_observations

    def ready(self, kind: Kind) -> bool:
        """Can iterations of this kind be predicted?"""
        return self.line(kind) is not None

    def samples(self, kind: Kind) -> int:
        """Rows of this kind that were learned from."""
        return self._now().learned.cells[kind].seen

    def line(self, kind: Kind) -> Line | None:
        """The prices of an iteration of this kind; None while it is not ready."""
        view = self._now()
        if kind not in view.lines:
            view.lines[kind] = self._fit(kind, view.learned.cells[kind])
        return view.lines[kind]

    def wall_time_s(
        self, *, prefill_tokens: float = 0.0, decode_requests: float = 0.0, decode_kv_tokens: float = 0.0
    ) -> float | None:
        """Seconds of one iteration with this load: 0.0 for no load, None where its kind is not ready.

        Kinds do not answer for one another here; `headrace.models.perf.speed` says when they may.
        """
        decodes = decode_requests > 0 or decode_kv_tokens > 0
        if not decodes and prefill_tokens <= 0:
            return 0.0
        kind = (Kind.MIXED if prefill_tokens > 0 else Kind.DECODE) if decodes else Kind.PREFILL
        line = self.line(kind)
        return None if line is None else line.at(prefill_tokens, decode_requests, decode_kv_tokens)

    @property
    def mean_isl(self) -> float | None:
        """Tokens per prefill request. Iterations without prefill do not dilute it; idle records after it fade it."""
        if self._now().learned.idle_at_prompt < self._idle:
            self.settle()  # else prompts that are not yet taken in would fade with those before them
        learned = self._now().learned
        return None if learned.isl.known is None else learned.isl.known * learned.faded(self._idle)

    @property
    def mean_decode_length(self) -> float | None:
        """Context tokens per decoding request."""
        return self._now().learned.decode_length.known

    @property
    def mean_prefill_tokens(self) -> float | None:
        """Prefill tokens per iteration that decodes, counting those without any: what a decoding request sees."""
        return self._now().learned.prefill_tokens.known

    def coefficients(self, kind: Kind) -> dict[str, float] | None:
        """intercept_s, per_prefill_token_s, per_decode_request_s, per_kv_token_s, samples; None while not ready.

        Where the prefill line bends, also bend_tokens and per_token_beyond_bend_s.
        """
        line = self.line(kind)
        if line is None:
            return None
        found = {
            "intercept_s": line.intercept_s,
            "per_prefill_token_s": line.per_prefill_token_s,
            "per_decode_request_s": line.per_decode_request_s,
            "per_kv_token_s": line.per_kv_token_s,
            "samples": float(self.samples(kind)),
        }
        if line.per_token_beyond_bend_s:
            found |= {"bend_tokens": line.bend_tokens, "per_token_beyond_bend_s": line.per_token_beyond_bend_s}
        return found

    def to_state(self) -> dict[str, Any]:
        """The whole model as plain lists and numbers, for JSON; `from_state` restores it exactly."""
        learned = self._learned
        means = {n: [t.count, t.mean] for n, t in learned.tallies.items()}
        return {
            "version": STATE_VERSION,
            "min_observations": self._min_observations,
            "buckets": self._buckets,
            "revision": self.revision,
            "idle": self._idle,
            "idle_at_prompt": learned.idle_at_prompt,
            "cells": {str(kind): cells.to_state() for kind, cells in learned.cells.items()},
            "means": means,
            "waiting": self._waiting[:, : self._waits].tolist(),
            "beforehand": {str(kind): cells.to_state() for kind, cells in self._beforehand.cells.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "EngineModel":
        """The model that `to_state` described. Raises StateError where it did not."""
        try:
            if state["version"] != STATE_VERSION:
                raise StateError(f"engine model state has version {state['version']}, not {STATE_VERSION}: learn anew")
            model = cls(min_observations=state["min_observations"], buckets=state["buckets"])
            cells = {k: Cells.from_state(g, state["cells"][k]) for k, g in grids(state["buckets"]).items()}
            means = {name: Tally(float(count), float(mean)) for name, (count, mean) in state["means"].items()}
            model._learned = Learned(cells, **means, idle_at_prompt=float(state["idle_at_prompt"]))
            if "beforehand" in state:  # not in older snapshots
                known = {k: Cells.from_state(g, state["beforehand"][k]) for k, g in grids(state["buckets"]).items()}
                model._beforehand = replace(model._beforehand, cells=known)
            waiting = np.array(state["waiting"], dtype=np.float64).reshape(r.COLUMNS, -1)
            model._waits = waiting.shape[1]
            model._waiting[:, : model._waits] = waiting
            model._rows = model._waits + sum(c.seen for c in cells.values())
            model.revision, model._idle = int(state["revision"]), int(state["idle"])
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise StateError(f"engine model state is damaged ({e!r}): drop the snapshot and learn anew") from e
        return model

    def _now(self) -> _View:
        if self._view is None or self._rows >= self._view.due:
            return self._take_in(self._waits - self._rows % self._often)
        return self._view

    @property
    def _often(self) -> int:
        """Rows between two views."""
        return 1 if self._rows < 16 else min(OFTEN_ROWS, 1 << (self._rows.bit_length() - 4))

    def _take_in(self, waiting: int) -> _View:
        """A view with at least so many of the rows that wait."""
        if self._view is None or self._view.waiting < waiting:
            due = self._rows - self._rows % self._often + self._often
            self._view = _View(self._learned.fold(self._waiting[:, :waiting]), waiting, due)
        return self._view

    def _fit(self, kind: Kind, cells: Cells) -> Line | None:
        beforehand = self._beforehand.cells[kind]
        if cells.seen < self._min_observations and beforehand.seen < FEWEST_BEFOREHAND:
            return None
        cells = cells.beside(beforehand, _fade(cells.seen))
        if kind is Kind.PREFILL:
            bent = fit_bent(cells)
            if bent is None:
                return None
            slope, *beyond = bent.fit.slopes
            return Line(bent.fit.intercept, slope, 0.0, 0.0, bent.bend, sum(beyond))
        table = table_of(cells, relative=False)
        found = None if table is None else fit(table.moments())
        if found is None:
            return None
        return Line(found.intercept, **{PRICES[f]: s for f, s in zip(FEATURES[kind], found.slopes, strict=True)})


def _fade(live_rows: int) -> float:
    """What a row known beforehand still counts for."""
    return (1.0 + live_rows / FADE_ROWS) ** -2
