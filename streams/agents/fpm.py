"""Observe FPMs: the newest of each engine rank, each counted once, none believed after it has gone stale."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import astuple

from headrace.models.perf.engine import EngineModel
from headrace.schemas.base import AGG, Role
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.reasons import DeadLetterReason
from headrace.streams.agents.payloads import Refused, Usable, dead_letters, decode_all
from headrace.streams.agents.rows import Rows

FIRST_PASSES = 3  # of a new rank: caches warm up, kernels compile; not the engine's speed (dynamo#12430)
FORGET_AFTER = 12  # times the stale age: then a silent rank leaves memory
MAX_RANKS = 20_000  # per role; more than any fleet, less than a flood of made-up ids
MAX_FOREIGN_ROLES = 8
LONGEST_WORKER_ID = 253

Key = tuple[str, int]  # worker id, dp rank


class Rank:
    """What is remembered of one (worker, dp rank)."""

    __slots__ = ("at", "busy_s", "counter", "decode_s", "fpm", "kv_s", "mean", "passes", "publisher", "sequence")

    def __init__(self, item: FpmItem, at: float, fpm: Fpm, passes: int = 0) -> None:
        self.publisher = item.publisher_id
        self.sequence = item.sequence
        self.counter = fpm.counter_id
        self.at = at  # event time, seconds
        self.fpm = fpm
        self.passes = passes  # busy iterations seen, up to FIRST_PASSES
        # Since the last tick, where it is asked for: seconds of iterations, and of each request and token in them.
        self.busy_s = self.decode_s = self.kv_s = 0.0
        self.mean: tuple[float, float] | None = None  # requests and KV tokens that decode, of the interval before

    def average(self) -> None:
        """Close an interval: an iteration counts by its time, as a request that comes in the middle of one finds it."""
        self.mean = (self.decode_s / self.busy_s, self.kv_s / self.busy_s) if self.busy_s else None
        self.busy_s = self.decode_s = self.kv_s = 0.0

    def restarted(self, item: FpmItem, at: float, counter: int) -> bool:
        """Does an FPM whose counter is not the next come from an engine that began again? Else it is old or known.

        Another publisher is another process, if its word is newer. The same publisher numbers all that it sends: a
        lower counter under a higher sequence is an engine that counts anew.
        """
        if at < self.at or (at == self.at and item.publisher_id != self.publisher):
            return False
        return item.publisher_id != self.publisher or (counter < self.counter and item.sequence > self.sequence)


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
    since: dict[Role, float] = field(default_factory=dict)  # seconds; how long a role has been heard of
    foreign_roles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for role in self.models:
            self.ranks.setdefault(role, {})
            self.rows.setdefault(role, Rows())

    def handle(self, batch: FpmBatch, now: float) -> list[DeadLetter]:
        """Take a batch in; what cannot be used comes back as dead letters. A repeated batch changes nothing."""
        if batch.role not in self.models:
            self._foreign(batch.role)
            return []
        self.since.setdefault(batch.role, now)
        usable, refused = decode_all(batch.items)
        busy = self._keep_newest(batch, usable, now, refused)
        self.rows[batch.role].add(busy, self.models[batch.role])
        self.counters.bad += len(refused)
        return dead_letters(batch, refused, now) if refused else []

    def _keep_newest(self, batch: FpmBatch, usable: Usable, now: float, refused: Refused) -> list[Fpm]:
        """Put each FPM where it belongs; what to learn from. The hot path: it calls nothing on its usual way."""
        ranks, skew, c, busy = self.ranks[batch.role], self.max_skew_s, self.counters, list[Fpm]()
        averaged = batch.role == AGG
        middle = batch.received_at if abs(batch.received_at - now) <= skew else now
        earliest, latest, oldest = middle - skew, middle + skew, now - self.stale_after_s
        for item, fpm in zip(*usable, strict=True):
            at, counter, key = item.published_at, fpm.counter_id, (fpm.worker_id, fpm.dp_rank)
            if not earliest <= at <= latest:
                at = _believed(at, batch.received_at, now, skew)
                c.clock_skew += at != item.published_at
            rank = ranks.get(key)
            if rank is None:
                if (error := _too_much(fpm.worker_id, ranks)) is not None:
                    c.seen -= 1
                    refused.append((item, error))
                    continue
                rank = ranks[key] = Rank(item, at, fpm)
            elif (
                rank.publisher == item.publisher_id
                and counter > rank.counter
                and (item.sequence > rank.sequence or at > rank.at)
            ):
                rank.counter, rank.sequence, rank.fpm = counter, item.sequence, fpm
                if at > rank.at:
                    rank.at = at
            elif rank.restarted(item, at, counter):
                rank = ranks[key] = Rank(item, at, fpm)
            else:
                self._passed_over(rank, item)
                continue
            if at < oldest:
                c.late += 1
            if fpm.wall_time > 0.0:
                if averaged:
                    wall_s, work = fpm.wall_time, fpm.scheduled_requests
                    rank.busy_s += wall_s
                    rank.decode_s += wall_s * work.num_decode_requests
                    rank.kv_s += wall_s * work.sum_decode_kv_tokens
                if rank.passes < FIRST_PASSES:
                    rank.passes += 1
                else:
                    busy.append(fpm)
        c.seen += len(usable[0])
        return busy

    def _passed_over(self, rank: Rank, item: FpmItem) -> None:
        self.counters.seen -= 1
        if rank.publisher == item.publisher_id:
            self.counters.duplicate += 1
        else:
            self.counters.out_of_order += 1

    def _foreign(self, role: str) -> None:
        shown = role[:64]
        if shown not in self.foreign_roles and len(self.foreign_roles) < MAX_FOREIGN_ROLES:
            self.foreign_roles.append(shown)

    def begin_tick(self, now: float) -> None:
        """Learn what is waiting, and drop ranks that have been silent so long that they are gone."""
        self.learn()
        oldest = now - FORGET_AFTER * self.stale_after_s
        for role, ranks in self.ranks.items():
            self.rows[role].begin_tick()
            for rank in ranks.values() if role == AGG else ():
                rank.average()
            for key in [k for k, rank in ranks.items() if rank.at < oldest]:
                del ranks[key]
            if ranks:
                self.widths[role] = max(Counter(worker for worker, _ in ranks).values())
            else:
                self.since.pop(role, None)

    def learn(self) -> None:
        """Teach the models what is still waiting; before a tick and before a snapshot."""
        for role, rows in self.rows.items():
            rows.teach(self.models[role])
            self.models[role].settle()

    def fresh(self, role: Role, now: float, workers: Collection[str] | None) -> dict[Key, Fpm]:
        """The newest FPM of every rank that spoke within the stale age; of `workers` alone, where they are known."""
        known = None if workers is None else set(workers)
        oldest = now - self.stale_after_s
        return {
            key: rank.fpm
            for key, rank in sorted(self.ranks[role].items())
            if rank.at >= oldest and (known is None or key[0] in known)
        }

    def mean(self, role: Role, key: Key) -> tuple[float, float] | None:
        """Requests and KV tokens that decoded on a rank, averaged over the interval before the last tick by time.

        Known of aggregated engines that are at work: one iteration of theirs prefills and the next does not, so a
        single one says little. None of all others: their newest FPM is what counts.
        """
        rank = self.ranks[role][key]
        return rank.mean if rank.fpm.wall_time > 0.0 else None

    def workers(self, role: Role) -> set[str]:
        """Ids of all workers that are remembered, silent ones too."""
        return {worker for worker, _ in self.ranks[role]}

    def newest_at(self, role: Role) -> float | None:
        """Event time of the newest FPM of a role, or None when none has come."""
        return max((rank.at for rank in self.ranks[role].values()), default=None)

    def to_state(self) -> dict[str, Any]:
        """JSON-able; call :meth:`learn` first."""
        return {
            "counters": {name: getattr(self.counters, name) for name in Counters.__dataclass_fields__},
            "ranks": {
                role: [
                    [*key, str(k.publisher), str(k.sequence), k.at, k.passes, _packed(k.fpm), _averaged(k)]
                    for key, k in ranks.items()
                ]
                for role, ranks in self.ranks.items()
            },
            "rows": {role: rows.to_state() for role, rows in self.rows.items()},
            "widths": self.widths,
            "since": self.since,
            "foreign_roles": self.foreign_roles,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.counters = Counters(**state["counters"])
        for role, ranks in state["ranks"].items():
            if role in self.models:
                self.ranks[role] = {(r[0], r[1]): _rank(r) for r in ranks}
        for role, rows in state["rows"].items():
            if role in self.models:
                self.rows[role].load_state(rows)
        self.widths = {role: width for role, width in state["widths"].items() if role in self.models}
        self.since = {role: at for role, at in state["since"].items() if role in self.models}
        self.foreign_roles = state["foreign_roles"]


def _believed(published_at: float, received_at: float, now: float, skew_s: float) -> float:
    """When an FPM was made, where the engine's clock, the source's and ours do not agree: two outvote the third.

    Where those of engine and source agree on a past that is long over, the FPM is late, not fresh.
    """
    if abs(received_at - now) <= skew_s:
        return received_at
    return published_at if abs(published_at - received_at) <= skew_s and received_at < now else now


def _too_much(worker: str, ranks: Mapping[Key, Rank]) -> RecordError | None:
    """Why a rank that is not known yet may not come in."""
    if len(worker) > LONGEST_WORKER_ID:
        return RecordError(
            f"worker_id of {len(worker)} characters: an id has at most {LONGEST_WORKER_ID}",
            reason=DeadLetterReason.INVALID,
        )
    if len(ranks) >= MAX_RANKS:
        return RecordError(
            f"more than {MAX_RANKS} engine ranks in one role: worker ids are made up or the mapping is wrong",
            reason=DeadLetterReason.TOO_MANY_WORKERS,
        )
    return None


def _packed(fpm: Fpm) -> list[Any]:
    """An FPM as a short list; counters may exceed what JSON readers take for an integer."""
    return [str(fpm.counter_id), fpm.wall_time, astuple(fpm.scheduled_requests), astuple(fpm.queued_requests)]


def _averaged(k: Rank) -> list[Any]:
    return [k.busy_s, k.decode_s, k.kv_s, k.mean]


def _rank(saved: list[Any]) -> Rank:
    worker, dp_rank, publisher, sequence, at, passes, (counter, wall_time, scheduled, queued), *averaged = saved
    fpm = Fpm(
        worker_id=worker,
        dp_rank=dp_rank,
        counter_id=int(counter),
        wall_time=wall_time,
        scheduled_requests=ScheduledRequests(*scheduled),
        queued_requests=QueuedRequests(*queued),
    )
    rank = Rank(FpmItem(at, int(publisher), int(sequence), b""), at, fpm, passes)
    for busy_s, decode_s, kv_s, mean in averaged:  # none in older snapshots
        rank.busy_s, rank.decode_s, rank.kv_s = busy_s, decode_s, kv_s
        rank.mean = None if mean is None else (float(mean[0]), float(mean[1]))
    return rank
