"""Who decides during a simulation: the seam for a planner, and the fixed fleet."""

from collections.abc import Sequence
from typing import Protocol

from headrace.schemas.base import Record


class Policy(Protocol):
    """Anything that turns records into decisions; `headrace.streams.planner.Planner` is one.

    `now` and `next_tick_at` are seconds since the epoch (the simulation's `origin_s` + simulated seconds).
    """

    @property
    def next_tick_at(self) -> float | None:
        """When to call `tick` next; None = never, until a record changes that."""

    def handle(self, record: Record, now: float) -> Sequence[Record]:
        """FpmBatch, TrafficWindow, WorkerInventory and DecisionAck come in; Decision and anything else may come out."""

    def tick(self, now: float) -> Sequence[Record]: ...


class FixedFleet:
    """Never says anything: the fleet stays what it is."""

    @property
    def next_tick_at(self) -> float | None:
        return None

    def handle(self, record: Record, now: float) -> Sequence[Record]:
        return ()

    def tick(self, now: float) -> Sequence[Record]:
        return ()
