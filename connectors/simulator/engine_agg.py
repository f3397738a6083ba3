"""An aggregated worker: prompts in chunks beside the decoding requests, in one batch under one token budget."""

from headrace.connectors.simulator.batch import DecodeBatch, WaitingQueue, variance
from headrace.connectors.simulator.engine import NOTHING_QUEUED, Engine, Identity, Surroundings
from headrace.connectors.simulator.request import Request
from headrace.connectors.simulator.timing import Limits
from headrace.schemas.fpm import QueuedRequests, ScheduledRequests


class AggEngine(Engine):
    """`load` is the requests that are here and not finished.

    Decoding goes first: each running request takes one token of the budget, prompts take what is left, first in first
    out. A prompt is admitted when isl + osl tokens of KV and a sequence are free.
    """

    __slots__ = (
        "_chunks", "_fresh", "_joining", "_kv_read", "_partial", "_seqs", "_tokens", "batch", "kv_reserved", "queue",
    )  # fmt: skip

    def __init__(self, identity: Identity, limits: Limits, world: Surroundings, now: float) -> None:
        super().__init__(identity, limits, world, now)
        self.batch = DecodeBatch()
        self.queue = WaitingQueue()
        self._partial: Request | None = None
        self._chunks: list[Request] = []  # prompts of this iteration
        self._joining: list[Request] = []  # prompt done in the last iteration: decodes from the next
        self._fresh: list[Request] = []
        self._tokens = 0
        self._kv_read = 0
        self._seqs = 0
        self.kv_reserved = 0

    def enqueue(self, request: Request, now: float) -> None:
        self.load += 1
        self.queue.append(request)
        self.wake(now)

    @property
    def empty(self) -> bool:
        return self.load == 0

    def _start(self) -> float:
        batch = self.batch
        for request in self._joining:
            batch.join(request)
        self._fresh, self._joining = self._joining, []
        self._fill(self.limits.max_num_batched_tokens - batch.n)
        if not batch.n and not self._chunks:
            return 0.0
        return self.world.timing.seconds(self._tokens, self._kv_read, batch.n, batch.kv)

    def _fill(self, budget: int) -> None:
        """Take prompt chunks into the iteration, up to `budget` tokens."""
        chunks: list[Request] = []
        tokens, kv_read = 0, 0
        while tokens < budget:
            request = self._partial or self._admitted()
            if request is None:
                break
            chunk = min(budget - tokens, request.isl - request.computed)
            kv_read += request.computed
            request.computed += chunk
            tokens += chunk
            chunks.append(request)
            self._partial = request if request.computed < request.isl else None
        self._chunks, self._tokens, self._kv_read = chunks, tokens, kv_read

    def _admitted(self) -> Request | None:
        waiting = self.queue.requests
        if not waiting or self._seqs >= self.limits.max_num_seqs:
            return None
        need = waiting[0].isl + waiting[0].osl
        if self.kv_reserved + need > self.limits.max_kv_tokens:
            return None
        self.kv_reserved += need
        self._seqs += 1
        return self.queue.popleft()

    def _end(self, now: float) -> float | None:
        batch, world = self.batch, self.world
        if world.sink is not None:
            self.publish(now, self.wall_s, self._scheduled(), self._queued())
        if batch.n:
            world.frontend.tokens(batch.n, self.wall_s, now, self._fresh)
            self._fresh = []
            for request in batch.advance() or ():
                self._finish(request, now)
        for request in self._chunks:
            if request is self._partial:
                continue
            request.first_token_at = now
            world.frontend.first_token(request)
            if request.osl == 1:
                self._finish(request, now)
            else:
                self._joining.append(request)
        return self._continue(now)

    def _finish(self, request: Request, now: float) -> None:
        self.load -= 1
        self._seqs -= 1
        self.kv_reserved -= request.isl + request.osl
        self.world.host.finished(request, now)

    def _scheduled(self) -> ScheduledRequests:
        n, total, squares = len(self._chunks), 0, 0
        for request in self._chunks:
            total += request.isl
            squares += request.isl * request.isl
        b = self.batch
        return ScheduledRequests(
            n, self._tokens, variance(n, total, squares), self._kv_read,
            b.n, b.kv, variance(b.n, b.kv, b.kv_squares),
        )  # fmt: skip

    def _queued(self) -> QueuedRequests:
        q = self.queue
        n = len(q.requests)
        return QueuedRequests(n, q.tokens, variance(n, q.tokens, q.squares)) if n else NOTHING_QUEUED
