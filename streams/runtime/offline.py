"""Drive a planner over recorded or simulated time: records in order of time, ticks when they are due, nothing else."""

from collections.abc import Iterable, Iterator

from headrace.schemas.base import Record
from headrace.streams.planner import Planner


def drive(
    planner: Planner, timed: Iterable[tuple[float, Record]], until: float | None = None
) -> Iterator[tuple[float, Record]]:
    """Feed `(time, record)` pairs, rising in time, and yield what the planner says with the time of saying it.

    Ticks run at their due time, before a record of the same time; after the last record they go on to `until`.
    """
    for at, record in timed:
        yield from _ticks(planner, at)
        for out in planner.handle(record, at):
            yield at, out
    if until is not None:
        yield from _ticks(planner, until)


def _ticks(planner: Planner, upto: float) -> Iterator[tuple[float, Record]]:
    while planner.next_tick_at <= upto:
        now = planner.next_tick_at
        for out in planner.tick(now):
            yield now, out
