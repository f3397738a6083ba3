"""A prefill worker: prompts in chunks under the batch limit, first come first served; holds KV until handed over."""

from headrace.connectors.simulator.batch import WaitingQueue, variance
from headrace.connectors.simulator.engine import NOTHING_QUEUED, Engine, Identity, State, Surroundings
from headrace.connectors.simulator.request import Request
from headrace.connectors.simulator.timing import Limits
from headrace.schemas.fpm import QueuedRequests, ScheduledRequests


class PrefillEngine(Engine):
    """`load` is the prompt tokens that are not computed yet.

    A prompt's KV is reserved when its first chunk is scheduled, and freed when a decode worker has it.
    """

    __slots__ = ("_batch", "_held", "_kv_read", "_partial", "_queue", "_tokens", "kv_used")

    def __init__(self, identity: Identity, limits: Limits, world: Surroundings, now: float) -> None:
        super().__init__(identity, limits, world, now)
        self._queue = WaitingQueue()
        self._partial: Request | None = None  # the one prompt of which a part is computed
        self._batch: list[Request] = []
        self._tokens = 0  # computed in this iteration
        self._kv_read = 0  # computed earlier for the same prompts
        self._held = 0  # requests whose KV is here: running, or waiting to be handed over
        self.kv_used = 0

    def enqueue(self, request: Request, now: float) -> None:
        self.load += request.isl
        self._queue.append(request)
        self.wake(now)

    @property
    def empty(self) -> bool:
        return not self._queue and not self._held

    def release(self, request: Request, now: float) -> None:
        """The KV of a request is somewhere else now, or no longer needed."""
        self._held -= 1
        self.kv_used -= request.isl
        if not self.busy:
            self.wake(now)
            if not self.busy and self.state is State.DRAINING and self.empty:
                self.world.host.emptied(self, now)

    def _start(self) -> float:
        budget = self.limits.max_num_batched_tokens
        batch: list[Request] = []
        kv_read = 0
        while budget and len(batch) < self.limits.max_num_seqs:
            request = self._next()
            if request is None:
                break
            chunk = min(budget, request.isl - request.computed)
            kv_read += request.computed
            request.computed += chunk
            budget -= chunk
            batch.append(request)
            self._partial = request if request.computed < request.isl else None
        if not batch:
            return 0.0
        self._batch = batch
        self._kv_read = kv_read
        self._tokens = tokens = self.limits.max_num_batched_tokens - budget
        return self.world.timing.prefill.seconds(tokens, kv_read)

    def _next(self) -> Request | None:
        """The prompt under way, else the oldest that waits, if its KV fits."""
        if self._partial is not None:
            return self._partial
        waiting = self._queue.requests
        if not waiting or self.kv_used + waiting[0].isl > self.limits.max_kv_tokens:
            return None
        request = self._queue.popleft()
        request.kv_at = self
        self._held += 1
        self.kv_used += request.isl
        return request

    def _end(self, now: float) -> float | None:
        if self.world.sink is not None:
            self.publish(now, self.wall_s, self._scheduled(), self._queued())
        self.load -= self._tokens
        host, frontend = self.world.host, self.world.frontend
        for request in self._batch:
            if request is self._partial:
                continue
            request.first_token_at = now
            frontend.first_token(request)
            if request.osl == 1:
                self.release(request, now)
                host.finished(request, now)
            else:
                host.prefilled(request, now)
        return self._continue(now)

    def _scheduled(self) -> ScheduledRequests:
        n, total, squares = len(self._batch), 0, 0
        for request in self._batch:
            total += request.isl
            squares += request.isl * request.isl
        return ScheduledRequests(n, self._tokens, variance(n, total, squares), self._kv_read)

    def _queued(self) -> QueuedRequests:
        q = self._queue
        n = len(q.requests)
        return QueuedRequests(n, q.tokens, variance(n, q.tokens, q.squares)) if n else NOTHING_QUEUED
