"""Which worker takes the next request."""

from collections.abc import Callable, Sequence
from operator import attrgetter

from headrace.connectors.simulator.config import RouterKind
from headrace.connectors.simulator.engine import Engine

Router = Callable[[Sequence[Engine]], Engine]  # of at least one active worker, oldest first


def least_loaded(workers: Sequence[Engine]) -> Engine:
    """The one with the smallest `load`; the oldest of equals."""
    return min(workers, key=attrgetter("load"))


class RoundRobin:
    """One after the other, whatever their load."""

    def __init__(self) -> None:
        self._turn = 0

    def __call__(self, workers: Sequence[Engine]) -> Engine:
        worker = workers[self._turn % len(workers)]
        self._turn += 1
        return worker


def make_router(kind: RouterKind) -> Router:
    return least_loaded if kind == "least_loaded" else RoundRobin()
