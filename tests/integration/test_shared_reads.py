"""Many readers of one stream through few: each gets what is its own, in order and once, whenever it comes."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from bus_support import eventually
from nats_support import fresh_prefix, kill_server, nats_server

from headrace.connectors.bus.base import Bus, Outgoing, Reader
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.memory import MemoryBus
from headrace.connectors.bus.nats import NatsBus
from headrace.schemas.streams import FPM, INVENTORY, MiB
from headrace.streams.runtime.shared_reads import SharedReads

LOG = replace(FPM, keep_bytes=64 * MiB)
DGDS = [f"team/d{i}" for i in range(12)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path_factory.mktemp("nats"), store_bytes=1024 * 1024**3) as server:
        yield server


@pytest.fixture(params=["memory", "nats"])
async def bus(request: pytest.FixtureRequest, server: EmbeddedNats) -> AsyncIterator[Bus]:
    bus: Bus = MemoryBus() if request.param == "memory" else NatsBus(server.url, fresh_prefix())
    async with AsyncExitStack() as stack:
        await bus.open()
        stack.push_async_callback(bus.close)
        await bus.ensure([LOG, INVENTORY])
        yield bus


class Writer:
    """Numbers what it writes for each DGD, and remembers the positions."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.count = dict.fromkeys(DGDS, 0)
        self.positions: dict[str, list[int]] = {dgd: [] for dgd in DGDS}

    async def write(self, dgd: str) -> None:
        out = Outgoing(LOG.name, dgd, str(self.count[dgd]).encode())
        self.positions[dgd].append(await self.bus.publish(out))
        self.count[dgd] += 1


class Follower:
    """Takes what a reader gives, until it is ended."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.numbers: list[int] = []
        self.position = 0
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            for message in await self.reader.next():
                self.numbers.append(int(message.data))
                self.position = message.position

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.reader.close()


async def test_those_that_start_together_share_a_reader_and_each_gets_its_own(bus: Bus) -> None:
    shared, writer = SharedReads(bus), Writer(bus)
    for n in range(240):
        await writer.write(DGDS[n % 12])
    after = {dgd: writer.positions[dgd][4 + i % 3] for i, dgd in enumerate(DGDS)}
    followers = {dgd: Follower(await shared.read(LOG, key=dgd, after=after[dgd])) for dgd in DGDS}
    await eventually(lambda: all(f.numbers and f.numbers[-1] == 19 for f in followers.values()))
    assert shared.consumers == 1
    for i, dgd in enumerate(DGDS):
        assert followers[dgd].numbers == list(range(5 + i % 3, 20))
    for dgd in DGDS:
        await writer.write(dgd)
    await eventually(lambda: all(f.numbers[-1] == 20 for f in followers.values()))
    for follower in followers.values():
        await follower.end()
    assert shared.consumers == 0
    await shared.close()


@pytest.mark.parametrize("seed", range(2))
async def test_whoever_comes_and_goes_gets_every_message_once_and_in_order(bus: Bus, seed: int) -> None:
    rng = random.Random(seed)
    shared, writer = SharedReads(bus), Writer(bus)
    followers: dict[str, Follower] = {}
    positions, numbers = dict.fromkeys(DGDS, 0), dict.fromkeys(DGDS, 0)
    done = asyncio.Event()

    async def write() -> None:
        while not done.is_set():
            for _ in range(rng.randrange(1, 20)):
                await writer.write(rng.choice(DGDS))
            await asyncio.sleep(rng.uniform(0.0, 0.02))

    async def end(dgd: str) -> None:
        follower = followers.pop(dgd)
        await follower.end()
        first = numbers[dgd]
        assert follower.numbers == list(range(first, first + len(follower.numbers)))
        numbers[dgd] += len(follower.numbers)
        positions[dgd] = follower.position or positions[dgd]

    writing = asyncio.create_task(write())
    for _ in range(40):
        dgd = rng.choice(DGDS)
        if dgd in followers:
            await end(dgd)
        else:
            followers[dgd] = Follower(await shared.read(LOG, key=dgd, after=positions[dgd]))
        await asyncio.sleep(rng.uniform(0.0, 0.15))
    done.set()
    await writing
    await eventually(lambda: all(numbers[d] + len(f.numbers) == writer.count[d] for d, f in followers.items()))
    await eventually(lambda: shared.consumers <= 1)
    for dgd in list(followers):
        await end(dgd)
    await shared.close()


async def test_one_that_comes_later_joins_the_others(bus: Bus) -> None:
    shared, writer = SharedReads(bus), Writer(bus)
    for dgd in DGDS:
        await writer.write(dgd)
    followers = []
    for dgd in DGDS[:5]:
        followers.append(Follower(await shared.read(LOG, key=dgd, after=0)))
        await asyncio.sleep(0.1)
    assert shared.consumers > 1
    await eventually(lambda: shared.consumers == 1)
    for dgd in DGDS:
        await writer.write(dgd)
    await eventually(lambda: all(f.numbers == [0, 1] for f in followers))
    for follower in followers:
        await follower.end()


async def test_a_position_of_a_stream_that_was_lost_reads_all_that_is_kept(bus: Bus) -> None:
    shared, writer = SharedReads(bus), Writer(bus)
    await writer.write(DGDS[0])
    await writer.write(DGDS[1])
    follower, other = [Follower(await shared.read(LOG, key=dgd, after=10**12)) for dgd in DGDS[:2]]
    await eventually(lambda: follower.numbers == other.numbers == [0])
    await follower.end()
    await other.end()


async def test_a_restart_of_the_server_is_not_noticed(tmp_path_factory: pytest.TempPathFactory) -> None:
    with nats_server(tmp_path_factory.mktemp("own")) as own:
        bus = NatsBus(own.url)
        await bus.open()
        await bus.ensure([LOG])
        shared, writer = SharedReads(bus), Writer(bus)
        followers = [Follower(await shared.read(LOG, key=dgd, after=0)) for dgd in DGDS]
        for n in range(120):
            await writer.write(DGDS[n % 12])
            if n == 60:
                await asyncio.to_thread(kill_server, own)
                await asyncio.to_thread(own.start)
        await eventually(lambda: all(f.numbers == list(range(10)) for f in followers))
        for follower in followers:
            await follower.end()
        await bus.close()
