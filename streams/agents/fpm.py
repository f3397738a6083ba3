"""Observe FPMs: the newest of each engine rank, each counted once, none believed after it has gone stale."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import astuple

from headrace.models.perf.engine import EngineModel
from headrace.schemas.base import Role
from headrace.schemas.deadletter import DeadLetter, cut
from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import VERSION, Fpm, QueuedRequests, ScheduledRequests, decode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.reasons import DeadLetterReason
from headrace.streams.agents.rows import Rows

FIRST_PASSES = 3  # of a new rank: caches warm up, kernels compile; not the engine's speed (dynamo#12430)
FORGET_AFTER = 12  # times the stale age: then a silent rank leaves memory
MAX_RANKS = 20_000  # per role; more than any fleet, less than a flood of made-up ids
MAX_LETTERS = 64  # per batch; the rest is counted and the last letter says so
MAX_FOREIGN_ROLES = 8
LONGEST_WORKER_ID = 253

Key = tuple[str, int]  # worker id, dp rank

_decode = msgspec.msgpack.Decoder(Fpm).decode


class Rank:
    """What is remembered of one (worker, dp rank)."""

    __slots__ = ("at", "counter", "fpm", "passes", "publisher", "sequence")

    def __init__(self, publisher: int, sequence: int, at: float, fpm: Fpm) -> None:
        self.publisher = publisher
        self.sequence = sequence
        self.counter = fpm.counter_id
        self.at = at  # event time, seconds
        self.fpm = fpm
        self.passes = 0  # busy iterations seen, up to FIRST_PASSES

    def restart(self, item: FpmItem, at: float, fpm: Fpm) -> bool:
        """An FPM whose counter is not the next: does the rank count anew? False for what is old or known already.

        Another publisher is another process if its word is newer. The same publisher numbers all that it sends, so a
        lower counter under a higher sequence is an engine that began again.
        """
        if item.publisher_id == self.publisher:
            if item.sequence <= self.sequence or fpm.counter_id == self.counter:
                return False
        elif at <= self.at:
            return False
        self.__init__(item.publisher_id, item.sequence, at, fpm)  # type: ignore[misc]
        return True


@dataclass(slots=True)
class Counters:
    seen: int = 0
    duplicate: int = 0  # same publisher, counter not newer
    out_of_order: int = 0  # from a publisher that another has replaced
    late: int = 0  # stale on arrival
    clock_skew: int = 0  # published_at not believed
    bad: int = 0  # dead-lettered


@dataclass(slots=True)
class FpmObserver:
    """The engines of one DGD. Memory is bounded by the number of live ranks."""

    models: Mapping[Role, EngineModel]
    stale_after_s: float
    max_skew_s: float
    counters: Counters = field(default_factory=Counters)
    ranks: dict[Role, dict[Key, Rank]] = field(default_factory=dict)
    rows: dict[Role, Rows] = field(default_factory=dict)
    widths: dict[Role, int] = field(default_factory=dict)  # ranks per worker, when last any was known
    foreign_roles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for role in self.models:
            self.ranks.setdefault(role, {})
            self.rows.setdefault(role, Rows())

    def handle(self, batch: FpmBatch, now: float) -> list[DeadLetter]:
        """Take a batch in; what cannot be used comes back as dead letters. A repeated batch changes nothing.

        The hot path: one call per batch, one turn of the loop per engine iteration.
        """
        if batch.role not in self.models:
            self._foreign(batch.role)
            return []
        ranks, rows = self.ranks[batch.role], self.rows[batch.role]
        received_at = batch.received_at if abs(batch.received_at - now) <= self.max_skew_s else now
        earliest, latest, oldest = received_at - self.max_skew_s, received_at + self.max_skew_s, now - self.stale_after_s
        seen = duplicate = late = skewed = 0
        bad: list[tuple[int, RecordError | None]] = []
        for index, item in enumerate(batch.items):
            try:
                fpm = _decode(item.payload)
            except (msgspec.DecodeError, RecursionError):
                bad.append((index, None))
                continue
            worker = fpm.worker_id
            if fpm.version != VERSION or not worker:
                bad.append((index, None))
                continue
            at = item.published_at
            if not earliest <= at <= latest:
                at = received_at
                skewed += 1
            key = (worker, fpm.dp_rank)
            rank = ranks.get(key)
            if rank is None:
                if (refused := self._refuse(worker, ranks)) is not None:
                    bad.append((index, refused))
                    continue
                rank = ranks[key] = Rank(item.publisher_id, item.sequence, at, fpm)
            elif rank.publisher == item.publisher_id and fpm.counter_id > rank.counter:
                rank.counter = fpm.counter_id
                rank.sequence = item.sequence
                rank.fpm = fpm
                if at > rank.at:
                    rank.at = at
            elif not rank.restart(item, at, fpm):
                duplicate += 1
                continue
            seen += 1
            if at < oldest:
                late += 1
            if fpm.wall_time > 0.0:
                if rank.passes < FIRST_PASSES:
                    rank.passes += 1
                else:
                    rows.add(fpm)
        rows.teach_when_many(self.models[batch.role])
        self._count(seen, duplicate, late, skewed)
        return self._dead(batch, bad, now) if bad else []
