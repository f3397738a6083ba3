"""The outbox: order, retries with the same records, and a bound that says what it drops."""

import asyncio
from collections.abc import Sequence

import pytest
from bus_support import eventually

from headrace.connectors.sources.outbox import Outbox, pause
from headrace.schemas.base import Record
from headrace.schemas.errors import BusError
from headrace.schemas.traffic import TrafficWindow


def window(n: int) -> TrafficWindow:
    return TrafficWindow(dgd="ml/llama", window_id=f"w{n}", source="s", start=n, end=n + 1, requests=n)


class Bus:
    """Takes records, or fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.tried: list[list[Record]] = []
        self.stored: list[Record] = []
        self.stored_some = asyncio.Event()

    async def publish_many(self, records: Sequence[Record]) -> None:
        self.tried.append(list(records))
        if self.failures > 0:
            self.failures -= 1
            raise BusError("the broker is away")
        self.stored.extend(records)
        self.stored_some.set()


async def run(outbox: Outbox, until: asyncio.Event) -> None:
    """Run an outbox until something has happened, then stop it."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(outbox.run(stop))
        await until.wait()
        stop.set()


async def test_records_are_published_in_order() -> None:
    bus = Bus()
    outbox = Outbox(bus.publish_many, limit=1000, name="s")
    for n in range(200):
        outbox.put(window(n))
    await run(outbox, bus.stored_some)
    assert bus.stored == [window(n) for n in range(200)]
    assert (outbox.counters.published, outbox.counters.dropped, outbox.waiting) == (200, 0, 0)


async def test_while_the_bus_is_away_the_same_records_are_tried_again() -> None:
    bus = Bus(failures=3)
    outbox = Outbox(bus.publish_many, limit=1000, name="s")
    outbox.put(window(1))
    outbox.put(window(2))
    await run(outbox, bus.stored_some)
    assert bus.stored == [window(1), window(2)]
    assert [batch[:2] for batch in bus.tried] == [[window(1), window(2)]] * 4


async def test_above_the_limit_the_oldest_are_dropped_and_counted() -> None:
    bus = Bus()
    outbox = Outbox(bus.publish_many, limit=100, name="s")
    for n in range(25):
        outbox.put(window(n), weight=10)
    assert (outbox.waiting, outbox.counters.dropped) == (100, 150)
    await run(outbox, bus.stored_some)
    assert bus.stored == [window(n) for n in range(15, 25)]
    assert outbox.counters.published == 100


async def test_the_newest_record_is_kept_however_heavy_it_is() -> None:
    bus = Bus()
    outbox = Outbox(bus.publish_many, limit=100, name="s")
    outbox.put(window(1), weight=500)
    await run(outbox, bus.stored_some)
    assert bus.stored == [window(1)]


async def test_what_waits_is_published_when_the_outbox_stops() -> None:
    bus = Bus()
    outbox = Outbox(bus.publish_many, limit=1000, name="s")
    stop = asyncio.Event()
    stop.set()
    outbox.put(window(1))
    await outbox.run(stop)
    assert bus.stored == [window(1)]


async def test_what_cannot_be_published_when_the_outbox_stops_is_counted_as_dropped() -> None:
    bus = Bus(failures=10**6)
    outbox = Outbox(bus.publish_many, limit=1000, name="s")
    stop = asyncio.Event()
    stop.set()
    outbox.put(window(1), weight=7)
    await outbox.run(stop)
    assert (bus.stored, outbox.counters.dropped) == ([], 7)


async def test_an_outbox_stops_while_the_bus_is_away() -> None:
    bus = Bus(failures=10**6)
    outbox = Outbox(bus.publish_many, limit=1000, name="s")
    outbox.put(window(1))
    stop = asyncio.Event()
    running = asyncio.create_task(outbox.run(stop))
    await eventually(lambda: bus.tried)
    stop.set()
    await running
    assert bus.stored == []


async def test_other_errors_end_the_outbox() -> None:
    """A record that the bus can never take must not be tried for ever."""

    async def broken(records: Sequence[Record]) -> None:
        raise TypeError("not a record")

    outbox = Outbox(broken, limit=10, name="s")
    outbox.put(window(1))
    with pytest.raises(TypeError):
        await outbox.run(asyncio.Event())


async def test_a_pause_ends_at_once_when_it_shall_stop() -> None:
    stop = asyncio.Event()
    stop.set()
    assert await pause(stop, 3600.0)


async def test_a_pause_that_is_not_interrupted_says_so() -> None:
    assert not await pause(asyncio.Event(), 0.001)
