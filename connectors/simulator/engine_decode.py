"""A decode worker: continuous batching, one token per request and iteration, the KV reserved to the last token."""

from functools import partial

from headrace.connectors.simulator.batch import DecodeBatch, WaitingQueue, variance
from headrace.connectors.simulator.engine import NOTHING_QUEUED, Engine, Identity, Surroundings
from headrace.connectors.simulator.request import Request
from headrace.connectors.simulator.timing import Limits
from headrace.schemas.fpm import QueuedRequests, ScheduledRequests


class DecodeEngine(Engine):
    """`load` is the requests that are here and not finished.

    A request is admitted, first come first served, when isl + osl tokens of KV and a sequence are free: then its KV is
    transferred, and it joins the batch at the next iteration. Reserving to the last token means no preemption.
    """

    __slots__ = ("_fresh", "_pending", "_ready", "_seqs", "_transferring", "batch", "kv_reserved", "queue")

    def __init__(self, identity: Identity, limits: Limits, world: Surroundings, now: float) -> None:
        super().__init__(identity, limits, world, now)
        self.batch = DecodeBatch()
        self.queue = WaitingQueue()  # waits for KV space
        self._pending = _Sums()  # waiting, in transfer, or ready: not in the batch yet
        self._ready: list[Request] = []  # KV is here; joins at the next iteration
        self._fresh: list[Request] = []  # gets its second token in this iteration
        self._seqs = 0
        self.kv_reserved = 0

    def enqueue(self, request: Request, now: float) -> None:
        self.load += 1
        self.queue.append(request)
        self._pending.add(request.isl + 1, 1)
        self._admit(now)

    @property
    def empty(self) -> bool:
        return self.load == 0

    def _admit(self, now: float) -> None:
        waiting, limits = self.queue.requests, self.limits
        while waiting and self._seqs < limits.max_num_seqs:
            need = waiting[0].isl + waiting[0].osl
            if self.kv_reserved + need > limits.max_kv_tokens:
                return
            request = self.queue.popleft()
            self.kv_reserved += need
            self._seqs += 1
            seconds = self.world.transfer.seconds(request.isl)
            if seconds > 0.0:
                self.world.agenda.at(now + seconds, partial(self._transferred, request))
            else:
                self._transferred(request, now)

    def _transferred(self, request: Request, now: float) -> None:
        if request.kv_at is not None:
            request.kv_at.release(request, now)
            request.kv_at = None
        self._ready.append(request)
        self.wake(now)

    def _start(self) -> float:
        batch = self.batch
        if self._ready:
            for request in self._ready:
                batch.join(request)
                self._pending.add(-request.isl - 1, -1)
            self._fresh = self._ready
            self._ready = []
        if not batch.n:
            return 0.0
        timing = self.world.timing.decode
        return timing.base_s + timing.per_request_s * batch.n + timing.per_kv_token_s * batch.kv

    def _end(self, now: float) -> float | None:
        batch = self.batch
        n, kv, world = batch.n, batch.kv, self.world
        if world.sink is not None:
            squares = batch.kv_squares
            scheduled = ScheduledRequests(0, 0, 0.0, 0, n, kv, (n * squares - kv * kv) / (n * n))
            self.publish(now, self.wall_s, scheduled, self._pending.queued() if self._pending.n else NOTHING_QUEUED)
        world.frontend.tokens(n, self.wall_s, now, self._fresh)
        if self._fresh:
            self._fresh = []
        finished = batch.advance()
        if finished is not None:
            for request in finished:
                self.load -= 1
                self._seqs -= 1
                self.kv_reserved -= request.isl + request.osl
                world.host.finished(request, now)
            if self.queue.requests:
                self._admit(now)
        return self._continue(now)


class _Sums:
    """Count, sum and sum of squares of the contexts that are not decoding yet."""

    __slots__ = ("n", "squares", "tokens")

    def __init__(self) -> None:
        self.n = self.tokens = self.squares = 0

    def add(self, context: int, sign: int) -> None:
        """Take in a context (sign 1), or out (sign -1, context negative)."""
        self.n += sign
        self.tokens += context
        self.squares += sign * context * context

    def queued(self) -> QueuedRequests:
        n, tokens = self.n, self.tokens
        return QueuedRequests(0, 0, 0.0, n, tokens, variance(n, tokens, self.squares))
