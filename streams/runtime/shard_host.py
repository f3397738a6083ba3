"""The planners of the partitions that this process owns: started, ended, and started again when one fails.

Whoever knows what is owned drives it, leases or a consumer group: `gained`, `lost`, and `discovered` for the DGDs that
there are.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.errors import Fenced, HeadraceError

log = logging.getLogger("headrace.shards")

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
STEADY_S = 60.0  # a planner that ran for so long begins again with the first retry

RunDgd = Callable[[str, asyncio.Event], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Unit:
    """The planner of one DGD, with what belongs to it. `failure`: why it does not run at this moment."""

    dgd: str
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None
    failures: int = 0
    failure: str | None = None


class ShardHost:
    """`run_dgd(dgd, stop)` plans one DGD until `stop` is set, `excluded(dgd)` says that others do for the time being.

    `on_end` is told of DGDs that are planned no more.
    """

    def __init__(
        self,
        partition_of: Callable[[str], int],
        run_dgd: RunDgd,
        excluded: Callable[[str], bool] = lambda _: False,
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._partition_of = partition_of
        self._run_dgd = run_dgd
        self._excluded = excluded
        self._on_end = on_end
        self._dgds: dict[int, set[str]] = {}
        self._owned: set[int] = set()
        self.units: dict[str, Unit] = {}

    def discovered(self, dgds: Iterable[str]) -> bool:
        """DGDs to be planned by whoever owns their partitions. True when one is in a partition that had none."""
        before = len(self._dgds)
        for dgd in dgds:
            partition = self._partition_of(dgd)
            known = self._dgds.setdefault(partition, set())
            if dgd not in known:
                known.add(dgd)
                if partition in self._owned:
                    self._start(dgd)
        return len(self._dgds) > before

    def partitions(self) -> list[int]:
        return sorted(self._dgds)

    def planning(self) -> int:
        return len(self.units)

    def gained(self, partition: int) -> None:
        self._owned.add(partition)
        for dgd in sorted(self._dgds.get(partition, ())):
            if dgd not in self.units:
                self._start(dgd)

    async def lost(self, partition: int) -> None:
        """Stop the planners of a partition, all at once, and wait for their ends."""
        self._owned.discard(partition)
        units = [unit for dgd, unit in self.units.items() if self._partition_of(dgd) == partition]
        await self._end(units)

    async def close(self) -> None:
        """Stop everything."""
        self._owned.clear()
        await self._end(list(self.units.values()))

    async def _end(self, units: list[Unit]) -> None:
        for unit in units:
            unit.stop.set()
        await asyncio.gather(*(unit.task for unit in units if unit.task is not None), return_exceptions=True)

    def _start(self, dgd: str) -> None:
        unit = self.units[dgd] = Unit(dgd)
        unit.task = asyncio.create_task(self._keep(unit), name=f"plan {dgd}")

    async def _keep(self, unit: Unit) -> None:
        """Plan until stopped. An error ends this DGD's planner for a while, and nobody else's."""
        try:
            while not unit.stop.is_set():
                started = time.monotonic()
                try:
                    if self._excluded(unit.dgd):
                        raise Fenced("it has planners of its own, which plan it alone")
                    await self._run_dgd(unit.dgd, unit.stop)
                except HeadraceError as e:
                    self._failed(unit, e, time.monotonic() - started)
                    # A former owner finds out before it is told: that is no trouble.
                    log.log(logging.INFO if isinstance(e, Fenced) else logging.ERROR, "%s: %s", unit.dgd, e)
                except Exception as e:
                    self._failed(unit, e, time.monotonic() - started)
                    log.exception("%s: the planner has failed", unit.dgd)
                await self._wait(unit)
        finally:
            if self.units.get(unit.dgd) is unit:
                del self.units[unit.dgd]
            self._on_end(unit.dgd)

    def _failed(self, unit: Unit, e: Exception, ran_s: float) -> None:
        unit.failure = f"{e}" or type(e).__name__
        unit.failures = 1 if ran_s > STEADY_S else unit.failures + 1

    async def _wait(self, unit: Unit) -> None:
        if unit.stop.is_set():
            return
        wait_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** max(0, unit.failures - 1))
        try:
            async with asyncio.timeout(wait_s):
                await unit.stop.wait()
        except TimeoutError:
            unit.failure = None
