"""Processes that take part in the leases, as tasks of one test, each with a bus of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bus_support import eventually

from headrace.connectors.bus.base import Bus
from headrace.streams.runtime.lease_terms import LeaseOptions
from headrace.streams.runtime.leases import Leases

LEASE_S = 0.9


@dataclass
class Owner:
    """A host that only notes what it owns, and when it may not yet stop."""

    wanted: list[int]
    owned: set[int] = field(default_factory=set)
    may_stop: asyncio.Event = field(default_factory=asyncio.Event)
    overlaps: int = 0
    others: "list[Owner]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_stop.set()

    def partitions(self) -> Collection[int]:
        return self.wanted

    def planning(self) -> int:
        return len(self.owned)

    def gained(self, partition: int) -> None:
        self.overlaps += any(partition in other.owned for other in self.others if other is not self)
        self.owned.add(partition)

    async def lost(self, partition: int) -> None:
        await self.may_stop.wait()
        self.owned.discard(partition)


@dataclass
class Process:
    owner: Owner
    leases: Leases
    bus: Bus
    stop: asyncio.Event
    task: "asyncio.Task[None]"

    async def killed(self) -> None:
        """End it as kill -9 would: nothing is said, and what it owns is planned by nobody."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.owner.owned.clear()

    async def stopped(self) -> None:
        self.stop.set()
        await self.task


class Town:
    """Starts processes on one broker."""

    def __init__(self, connect: Callable[[], Bus], partitions: Collection[int]) -> None:
        self.connect = connect
        self.partitions = list(partitions)
        self.lease_s = LEASE_S
        self.owners: list[Owner] = []
        self.processes: list[Process] = []

    async def start(self, name: str, group: str = "main", alone: str | None = None) -> Process:
        bus = self.connect()
        await bus.open()
        owner = Owner(list(self.partitions), others=self.owners)
        self.owners.append(owner)
        leases = Leases(bus, LeaseOptions(group, self.lease_s, alone, name), owner)
        stop = asyncio.Event()
        process = Process(owner, leases, bus, stop, asyncio.create_task(leases.run(stop)))
        self.processes.append(process)
        return process

    async def settled(self, *processes: Process) -> list[int]:
        """How many partitions each has, once all are owned and evenly."""

        def even() -> bool:
            sizes = [len(p.owner.owned) for p in processes]
            all_owned = set().union(*(p.owner.owned for p in processes)) == set(self.partitions)
            return all_owned and sum(sizes) == len(self.partitions) and max(sizes) - min(sizes) <= 1

        await eventually(even)
        return [len(p.owner.owned) for p in processes]


@asynccontextmanager
async def town_on(connect: Callable[[], Bus], partitions: Collection[int]) -> AsyncIterator[Town]:
    town = Town(connect, partitions)
    try:
        yield town
    finally:
        for process in town.processes:
            process.owner.may_stop.set()
            process.task.cancel()
        await asyncio.gather(*(p.task for p in town.processes), return_exceptions=True)
        for process in town.processes:
            await process.bus.close()
