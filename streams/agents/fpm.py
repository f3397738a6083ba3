"""Observe FPMs: the newest of each engine rank, each counted once, none believed after it has gone stale."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.models.perf.engine import EngineModel
from headrace.schemas.base import Role
from headrace.schemas.deadletter import DeadLetter, cut
from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import VERSION, Fpm, decode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem

FIRST_PASSES = 3  # of a new rank: caches warm up, kernels compile; not the engine's speed (dynamo#12430)
FORGET_AFTER = 12  # times the stale age: then a silent rank leaves memory
MAX_RANKS = 20_000  # per role; more than any fleet, less than a flood of made-up ids
FLUSH_ROWS = 512

_decode = msgspec.msgpack.Decoder(Fpm).decode
_TOO_MANY = f"more than {MAX_RANKS} engine ranks in one role: worker ids are made up or the mapping is wrong"


class Rank:
    """What is remembered of one (worker, dp rank)."""

    __slots__ = ("at", "counter", "fpm", "passes", "publisher")

    def __init__(self, publisher: int, counter: int, at: float, fpm: Fpm, passes: int = 0) -> None:
        self.publisher = publisher
        self.counter = counter
        self.at = at  # event time, seconds
        self.fpm = fpm
        self.passes = passes  # busy iterations seen, up to FIRST_PASSES


class Rows:
    """Iterations waiting to be learned from, column by column."""

    __slots__ = ("decode_kv_tokens", "decode_requests", "prefill_requests", "prefill_tokens", "wall_time_s")

    def __init__(self) -> None:
        self.prefill_requests: list[int] = []
        self.prefill_tokens: list[int] = []
        self.decode_requests: list[int] = []
        self.decode_kv_tokens: list[int] = []
        self.wall_time_s: list[float] = []

    def __len__(self) -> int:
        return len(self.wall_time_s)

    def teach(self, model: EngineModel) -> None:
        model.learn(
            self.prefill_requests,
            self.prefill_tokens,
            self.decode_requests,
            self.decode_kv_tokens,
            self.wall_time_s,
        )
        self.__init__()  # type: ignore[misc]


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

    models: dict[Role, EngineModel]
    stale_after_s: float
    max_skew_s: float
    counters: Counters = field(default_factory=Counters)
    ranks: dict[Role, dict[tuple[str, int], Rank]] = field(default_factory=dict)
    rows: dict[Role, Rows] = field(default_factory=dict)
    foreign_roles: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for role in self.models:
            self.ranks.setdefault(role, {})
            self.rows.setdefault(role, Rows())

    def handle(self, batch: FpmBatch, now: float) -> list[DeadLetter]:
        """Take a batch in; what cannot be used comes back as dead letters. A repeated batch changes nothing."""
        if batch.role not in self.models:
            self.foreign_roles.add(batch.role[:64])
            return []
        ranks, rows, counters = self.ranks[batch.role], self.rows[batch.role], self.counters
        received_at = batch.received_at if abs(batch.received_at - now) <= self.max_skew_s else now
        skew, oldest = self.max_skew_s, now - self.stale_after_s
        letters: list[DeadLetter] = []
        for index, item in enumerate(batch.items):
            try:
                fpm = _decode(item.payload)
                bad = fpm.version != VERSION or not fpm.worker_id
            except (msgspec.DecodeError, RecursionError):
                bad = True
            if bad:
                letters.append(self._dead(batch, index, item, now))
                continue
            at = item.published_at
            if not -skew <= at - received_at <= skew:
                at = received_at
                counters.clock_skew += 1
            key = (fpm.worker_id, fpm.dp_rank)
            rank = ranks.get(key)
            if rank is None:
                if len(ranks) >= MAX_RANKS:
                    letters.append(self._dead(batch, index, item, now, RecordError(_TOO_MANY, reason="too_many_workers")))
                    continue
                rank = ranks[key] = Rank(item.publisher_id, fpm.counter_id, at, fpm)
            elif rank.publisher == item.publisher_id:
                if fpm.counter_id <= rank.counter:
                    counters.duplicate += 1
                    continue
                rank.counter = fpm.counter_id
                rank.at = at if at > rank.at else rank.at
                rank.fpm = fpm
            elif at > rank.at:  # the publisher was restarted: its counter starts anew
                rank.publisher, rank.counter, rank.at, rank.fpm, rank.passes = item.publisher_id, fpm.counter_id, at, fpm, 0
            else:
                counters.out_of_order += 1
                continue
            counters.seen += 1
            if at < oldest:
                counters.late += 1
            if fpm.wall_time > 0.0:
                if rank.passes < FIRST_PASSES:
                    rank.passes += 1
                    continue
                work = fpm.scheduled_requests
                rows.prefill_requests.append(work.num_prefill_requests)
                rows.prefill_tokens.append(work.sum_prefill_tokens)
                rows.decode_requests.append(work.num_decode_requests)
                rows.decode_kv_tokens.append(work.sum_decode_kv_tokens)
                rows.wall_time_s.append(fpm.wall_time)
        if len(rows) >= FLUSH_ROWS:
            rows.teach(self.models[batch.role])
        return letters

    def learn(self) -> None:
        """Teach the models what is still waiting; before a tick and before a snapshot."""
        for role, rows in self.rows.items():
            if len(rows):
                rows.teach(self.models[role])

    def fresh(self, role: Role, now: float, workers: Iterable[str] | None) -> dict[tuple[str, int], Fpm]:
        """The newest FPM of every rank that spoke within the stale age and that the inventory (if it names workers) knows."""
        known = None if workers is None else set(workers)
        oldest = now - self.stale_after_s
        return {
            key: rank.fpm
            for key, rank in sorted(self.ranks[role].items())
            if rank.at >= oldest and (known is None or key[0] in known)
        }

    def forget(self, now: float) -> None:
        """Drop ranks that have been silent so long that they are gone."""
        oldest = now - FORGET_AFTER * self.stale_after_s
        for ranks in self.ranks.values():
            for key in [k for k, rank in ranks.items() if rank.at < oldest]:
                del ranks[key]

    def newest_at(self, role: Role) -> float | None:
        """Event time of the newest FPM of a role, or None when none has come."""
        return max((rank.at for rank in self.ranks[role].values()), default=None)

    def _dead(
        self, batch: FpmBatch, index: int, item: FpmItem, now: float, error: RecordError | None = None
    ) -> DeadLetter:
        self.counters.bad += 1
        if error is None:
            try:
                decode_fpm(item.payload)
                error = RecordError("FPM refused")
            except RecordError as e:
                error = e
        return DeadLetter(
            dgd=batch.dgd,
            reason=error.reason,
            message=str(error),
            reader="headrace.planner",
            stream="fpm",
            position=None,
            at=now,
            data=cut(item.payload),
            size=len(item.payload),
            headers={"source": batch.source, "publisher": str(item.publisher_id), "sequence": str(item.sequence)},
            item=index,
        )

    def to_state(self) -> dict[str, Any]:
        """JSON-able; call :meth:`learn` first."""
        return {
            "counters": {name: getattr(self.counters, name) for name in Counters.__dataclass_fields__},
            "ranks": {
                role: [
                    [w, r, str(k.publisher), str(k.counter), k.at, k.passes, msgspec.to_builtins(k.fpm)]
                    for (w, r), k in ranks.items()
                ]
                for role, ranks in self.ranks.items()
            },
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.counters = Counters(**state["counters"])
        for role, ranks in state["ranks"].items():
            if role in self.models:
                self.ranks[role] = {
                    (w, r): Rank(int(publisher), int(counter), at, msgspec.convert(fpm, Fpm), passes)
                    for w, r, publisher, counter, at, passes, fpm in ranks
                }
