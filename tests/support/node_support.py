"""Planner nodes on a bus of any kind, under a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import world
from bus_support import eventually
from kafka_support import KafkaCluster, empty
from nats_support import kill_server

from headrace.connectors.bus.base import Bus, Outgoing
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.kafka import KafkaBus, KafkaOptions
from headrace.connectors.bus.memory import MemoryBroker, MemoryBus
from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.nats.options import NatsOptions
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.config import planner_config
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Decision
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import ACKS, DEADLETTERS, DECISIONS, STATE, STREAMS, TICKS, Stream
from headrace.schemas.tick_report import TickReport
from headrace.streams.runtime.node import NodeOptions, PlannerNode

DGD = world.DGD
START = 1_700_000_000.0  # a tick is due here
CONFIG: dict[str, Any] = {
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "throughput_adjustment_interval_seconds": 60,
    "load_adjustment_interval_seconds": 5,
    "max_gpu_budget": -1,
}


class HandClock:
    """A clock that stands still until the test moves it. What is on a bus was stored now."""

    def __init__(self, at: float = START) -> None:
        self.at = at
        self._moved = asyncio.Event()

    def now(self) -> float:
        return self.at

    def of_wall(self, wall_s: float) -> float:
        return self.at

    def move(self, at: float) -> None:
        self.at = at
        self._moved.set()
        self._moved = asyncio.Event()

    async def sleep_until(self, at: float, stop: asyncio.Event) -> None:
        stopping = asyncio.create_task(stop.wait())
        try:
            before = self.at
            while before <= self.at < at and not stop.is_set():
                before = self.at
                moved = asyncio.create_task(self._moved.wait())
                await asyncio.wait((stopping, moved), return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
        finally:
            stopping.cancel()


@dataclass(slots=True)
class Running:
    """A node that runs, and what it said in each tick."""

    node: PlannerNode
    clock: HandClock
    task: "asyncio.Task[None]"
    stop: asyncio.Event
    said: list[list[Record]]

    @property
    def reports(self) -> list[TickReport]:
        return [r for said in self.said for r in said if isinstance(r, TickReport)]

    @property
    def decisions(self) -> list[Decision]:
        return [r for said in self.said for r in said if isinstance(r, Decision)]

    async def started(self) -> "Running":
        """Wait for its first tick, which is due at once."""
        await self._ticked(1)
        return self

    async def tick(self, after_s: float = 5.0) -> TickReport:
        """Move the clock, and wait for the tick's report."""
        before = len(self.said)
        self.clock.move(self.clock.at + after_s)
        await self._ticked(before + 1)
        return self.reports[-1]

    async def _ticked(self, times: int) -> None:
        await eventually(lambda: len(self.said) >= times or self.task.done())
        if self.task.done():
            self.task.result()
        assert len(self.said) == times

    async def took(self, stream: Stream, position: int) -> None:
        """Wait until it has read so far."""
        await eventually(lambda: self.node.positions.get(stream.name, 0) >= position or self.task.done())
        assert not self.task.done(), self.task.exception()

    async def ends(self) -> BaseException | None:
        """Wait for its end; the error with which it ended."""
        await asyncio.wait((self.task,), timeout=20)
        assert self.task.done()
        return self.task.exception()

    async def stopped(self) -> None:
        self.stop.set()
        error = await self.ends()
        if error is not None:
            raise error

    async def killed(self) -> None:
        """End it as a crash would: nothing more is written."""
        self.task.cancel()
        await asyncio.wait((self.task,), timeout=20)


async def nothing(_: Record) -> None:
    pass


class HookedBus(RecordBus):
    """Lets a test do something between the writes of a node."""

    def __init__(self, bus: Bus, reader_name: str, clock: Callable[[], float]) -> None:
        super().__init__(bus, reader_name, clock)
        self.before: Callable[[Record], Awaitable[None]] = nothing  # each single publish

    async def publish(self, record: Record, message_id: str | None = None, expect_last: int | None = None) -> int:
        await self.before(record)
        return await super().publish(record, message_id, expect_last)


@dataclass(slots=True)
class Lab:
    """Buses on one broker, with the streams on it, and everything that a test does to them."""

    connect: Callable[[], Bus]
    clock: HandClock
    broker: MemoryBroker | None = None
    server: EmbeddedNats | None = None
    records: RecordBus = field(init=False)
    buses: list[Bus] = field(default_factory=list)
    nodes: list[Running] = field(default_factory=list)
    asked: int = 0

    async def bus(self, name: str = "planner") -> HookedBus:
        """A connection of its own."""
        bus = self.connect()
        await bus.open()
        await bus.ensure(STREAMS.values())
        self.buses.append(bus)
        return HookedBus(bus, name, self.clock.now)

    async def lose(self, stream: Stream) -> None:
        """Delete what a stream holds."""
        if self.broker is not None:
            log = self.broker.log(stream.name)
            log._messages.clear()
            log._last.clear()
            return
        bus = self.records.bus
        if isinstance(bus, KafkaBus):
            await empty(bus, stream)
            return
        assert isinstance(bus, NatsBus)
        name = bus._link.subjects.stream_name(stream.name)
        await bus._link.api.request(f"STREAM.PURGE.{name}")

    async def down(self) -> None:
        """Switch the broker off, with kill -9 where it is a process."""
        if self.broker is not None:
            self.broker.available = False
            return
        assert self.server is not None
        await asyncio.to_thread(kill_server, self.server)

    async def up(self) -> None:
        if self.broker is not None:
            self.broker.available = True
            return
        assert self.server is not None
        await asyncio.to_thread(self.server.start)

    async def start(
        self, *, records: RecordBus | None = None, clock: HandClock | None = None, **config: Any
    ) -> Running:
        """A node, not awaited: it may not come far."""
        said: list[list[Record]] = []
        clock = clock or self.clock
        node = PlannerNode(
            records or await self.bus(),
            planner_config(CONFIG | config),
            DGD,
            clock,
            NodeOptions(on_tick=lambda records: said.append(list(records)), catch_up_s=4.0),
        )
        stop = asyncio.Event()
        running = Running(node, clock, asyncio.create_task(node.run(stop)), stop, said)
        self.nodes.append(running)
        return running

    async def node(self, **config: Any) -> Running:
        """A node after its first tick."""
        return await (await self.start(**config)).started()

    async def put(self, stream: Stream, data: bytes, headers: dict[str, str] | None = None, key: str = DGD) -> int:
        """Any bytes under the DGD's key."""
        return await self.records.bus.publish(Outgoing(stream.name, key, data, headers or {}))

    # -- the deployment --------------------------------------------------------------------------------------------

    async def fleet(self, *, prefill: int = 1, decode: int = 1) -> int:
        return await self.records.publish(world.inventory(self.clock.now(), prefill=prefill, decode=decode))

    async def ask(self, **targets: int) -> int:
        """An outside SET that lasts, and wins over those before it."""
        self.asked += 1
        at = self.clock.now()
        more: dict[str, Any] = {"proposal_id": f"p{self.asked}", "priority": 100 - self.asked, **targets}
        return await self.records.publish(world.proposal("SET", at=at, until=at + 1e6, **more))

    async def ack(self, decision: Decision, status: str = "applied") -> int:
        ack = DecisionAck(
            dgd=DGD, epoch=decision.epoch, decision_id=decision.decision_id, status=AckStatus(status), executor="test",
            at=self.clock.now(), counts=decision.targets,
        )  # fmt: skip
        return await self.records.publish(ack)

    # -- what is on the log ----------------------------------------------------------------------------------------

    async def log(self, stream: Stream) -> list[Any]:
        """Every record that the stream keeps for the DGD."""
        last = await self.records.bus.last(stream, DGD)
        found: list[Any] = []
        reader = await self.records.read(stream, DGD, after=0)
        while last is not None and reader.position < last.position:
            found += [record for record, _ in await reader.next(timeout=10)]
        await reader.close()
        return found

    async def decisions(self) -> list[Decision]:
        return await self.log(DECISIONS)

    async def reports(self) -> list[TickReport]:
        return await self.log(TICKS)

    async def letters(self) -> list[DeadLetter]:
        return await self.log(DEADLETTERS)

    async def state(self) -> PlannerState:
        found = await self.records.last(STATE, DGD)
        assert found is not None
        assert isinstance(found[0], PlannerState)
        return found[0]

    async def acks(self) -> list[DecisionAck]:
        return await self.log(ACKS)


@asynccontextmanager
async def lab_on(server: EmbeddedNats | KafkaCluster | None, prefix: str = "headrace") -> AsyncIterator[Lab]:
    """A lab on NATS or Kafka under a prefix, or in memory without a server."""
    clock = HandClock()
    if isinstance(server, KafkaCluster):
        where = KafkaOptions.from_url(f"{server.url}?partitions=2&patience_s=2")
        lab = Lab(lambda: KafkaBus(where, prefix), clock)
    elif server is None:
        broker = MemoryBroker(clock.now)
        lab = Lab(lambda: MemoryBus(broker), clock, broker=broker)
    else:
        options = NatsOptions.from_url(f"{server.url}?patience_s=2")
        lab = Lab(lambda: NatsBus(options, prefix), clock, server=server)
    lab.records = await lab.bus("test")
    try:
        yield lab
    finally:
        for running in lab.nodes:
            running.stop.set()
        await asyncio.gather(*(running.task for running in lab.nodes), return_exceptions=True)
        for bus in lab.buses:
            await bus.close()
