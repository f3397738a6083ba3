"""Sums over many requests, kept in O(1) a step: the decode batch and the waiting queue."""

from collections import deque

from headrace.connectors.simulator.request import Request


def variance(n: int, total: int, squares: int) -> float:
    """Population variance of n whole numbers from sum and sum of squares; exact, since integers do not cancel."""
    return (n * squares - total * total) / (n * n) if n else 0.0


class DecodeBatch:
    """The requests that each get one token per iteration.

    A request joins with its prompt and first token in the cache (context isl + 1) and leaves after osl - 1 iterations
    (context isl + osl). Every context grows by one per iteration, so sum and sum of squares follow without a loop:
    (x + 1)^2 = x^2 + 2x + 1.
    """

    __slots__ = ("_iteration", "_leaving", "kv", "kv_squares", "n")

    def __init__(self) -> None:
        self.n = 0
        self.kv = 0  # sum of context lengths, tokens
        self.kv_squares = 0
        self._iteration = 0
        self._leaving: dict[int, list[Request]] = {}  # iteration after which they are finished

    def join(self, request: Request) -> None:
        context = request.isl + 1
        self.n += 1
        self.kv += context
        self.kv_squares += context * context
        last = self._iteration + request.osl - 2
        group = self._leaving.get(last)
        if group is None:
            self._leaving[last] = [request]
        else:
            group.append(request)

    def advance(self) -> list[Request] | None:
        """One iteration is over: every context has grown by one. Returns those that have all their tokens now."""
        n, kv = self.n, self.kv
        self.kv_squares += 2 * kv + n
        self.kv = kv + n
        finished = self._leaving.pop(self._iteration, None)
        self._iteration += 1
        if finished is not None:
            for request in finished:
                context = request.isl + request.osl
                self.n -= 1
                self.kv -= context
                self.kv_squares -= context * context
        return finished


class WaitingQueue:
    """First in, first out, with the sums that an FPM reports."""

    __slots__ = ("requests", "squares", "tokens")

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()
        self.tokens = 0  # sum of prompt lengths
        self.squares = 0

    def __len__(self) -> int:
        return len(self.requests)

    def append(self, request: Request) -> None:
        self.requests.append(request)
        self.tokens += request.isl
        self.squares += request.isl * request.isl

    def popleft(self) -> Request:
        request = self.requests.popleft()
        self.tokens -= request.isl
        self.squares -= request.isl * request.isl
        return request
