"""Record buses in memory, for tests of whatever publishes and reads records."""

import asyncio
from collections.abc import Callable, Sequence

from headrace.connectors.bus.memory import MemoryBroker, MemoryBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.base import Record
from headrace.schemas.streams import STREAMS, Stream


async def memory_records(
    clock: Callable[[], float], name: str = "test", broker: MemoryBroker | None = None
) -> RecordBus:
    """A record bus with all streams; buses with the same broker see each other's records."""
    bus = MemoryBus(broker or MemoryBroker(clock))
    await bus.open()
    await bus.ensure(STREAMS.values())
    return RecordBus(bus, name, clock)


async def kept(records: RecordBus, stream: Stream) -> Sequence[Record]:
    """Everything that a stream keeps, oldest first."""
    info = await records.bus.info(stream)
    if info.messages == 0:
        return []
    reader = await records.read(stream, after=0)
    found: list[Record] = []
    while len(found) < info.messages:
        batch = await reader.next(timeout=2)
        assert batch, f"{stream.name} keeps {info.messages} messages, but only {len(found)} can be read"
        found.extend(record for record, _ in batch)
    await reader.close()
    return found


async def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - conditions of any kind, not events
            await asyncio.sleep(0.005)
