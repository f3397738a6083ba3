"""What the in-memory bus has beyond the contract: a given clock, determinism, a broker that can be switched off."""

import asyncio
from dataclasses import replace

import pytest

from headrace.connectors.bus.base import DUPLICATE_WINDOW_S, Outgoing
from headrace.connectors.bus.memory import MemoryBroker, MemoryBus
from headrace.schemas.errors import BusError
from headrace.schemas.streams import DECISIONS, FPM, INVENTORY

A, B = "ml/llama", "ml/qwen"


class Hands:
    """A clock that is set by hand, seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
async def bus(clock: Hands) -> MemoryBus:
    opened = MemoryBus(MemoryBroker(clock))
    await opened.open()
    await opened.ensure([DECISIONS, FPM, INVENTORY])
    return opened


def out(data: str, key: str = A, stream: str = "decisions", message_id: str | None = None) -> Outgoing:
    return Outgoing(stream, key, data.encode(), message_id=message_id)


async def kept(bus: MemoryBus, stream: str) -> list[str]:
    by_name = {"decisions": DECISIONS, "fpm": FPM, "inventory": INVENTORY}
    reader = await bus.read(by_name[stream], after=0)
    return [message.data.decode() for message in await reader.next(timeout=0)]


async def test_time_is_the_clocks_and_positions_count_from_one(bus: MemoryBus, clock: Hands) -> None:
    assert await bus.publish(out("1")) == 1
    clock.now = 1007.5
    assert await bus.publish(out("2")) == 2
    assert await bus.publish(out("1", stream="fpm")) == 1
    reader = await bus.read(DECISIONS, after=0)
    assert [message.stored_at for message in await reader.next()] == [1000.0, 1007.5]


async def test_the_age_limit_follows_the_clock(bus: MemoryBus, clock: Hands) -> None:
    assert FPM.keep_s == 600
    await bus.publish(out("1", stream="fpm"))
    clock.now += 300
    await bus.publish(out("2", stream="fpm"))
    clock.now += 299
    assert await kept(bus, "fpm") == ["1", "2"]
    clock.now += 1
    assert await kept(bus, "fpm") == ["2"]
    clock.now += 300
    assert await kept(bus, "fpm") == []
    assert await bus.last(FPM, A) is None
    assert (await bus.info(FPM)).last_position == 2


async def test_last_values_and_decisions_never_grow_old(bus: MemoryBus, clock: Hands) -> None:
    await bus.publish(out("1", stream="inventory"))
    await bus.publish(out("1"))
    clock.now += 1e9
    assert await kept(bus, "inventory") == ["1"]
    assert await kept(bus, "decisions") == ["1"]


async def test_an_id_is_forgotten_after_the_duplicate_window_unless_it_is_the_newest_of_its_key(
    bus: MemoryBus, clock: Hands
) -> None:
    await bus.publish(out("1", key=A, message_id="x"))
    await bus.publish(out("2", key=A, message_id="y"))
    clock.now += DUPLICATE_WINDOW_S - 1
    assert await bus.publish(out("1", key=A, message_id="x")) == 1
    clock.now += 1
    assert await bus.publish(out("2", key=A, message_id="y")) == 2
    assert await bus.publish(out("1", key=A, message_id="x")) == 3


async def test_a_long_run_of_a_bounded_stream_keeps_memory_bounded(bus: MemoryBus) -> None:
    small = replace(DECISIONS, keep_bytes=1000)
    await bus.ensure([small])
    for i in range(20_000):
        await bus.publish_many([out(f"{i}")])
    info = await bus.info(small)
    assert info.size_bytes <= 1000
    assert len(bus.broker.log("decisions")._messages) < 3000
    assert (await kept(bus, "decisions"))[-1] == "19999"


async def test_a_broker_that_is_off_refuses_and_forgets_nothing(bus: MemoryBus) -> None:
    reader = await bus.read(DECISIONS, after=0)
    await bus.publish(out("1"))
    bus.broker.available = False
    assert not bus.connected
    with pytest.raises(BusError, match="switched off"):
        await bus.publish(out("2"))
    assert await reader.next(timeout=0.01) == []
    with pytest.raises(BusError, match="switched off"):
        await MemoryBus(bus.broker).open()
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    bus.broker.available = True
    assert [message.data for message in await waiting] == [b"1"]
    assert bus.connected


async def test_two_runs_give_the_same_messages() -> None:
    async def run() -> list[tuple[str, int, bytes, float]]:
        clock = Hands()
        bus = MemoryBus(MemoryBroker(clock))
        await bus.open()
        await bus.ensure([DECISIONS])
        for i in range(100):
            clock.now += 0.25
            await bus.publish(out(f"{i}", key=A if i % 3 else B))
        messages = await (await bus.read(DECISIONS, after=0)).next()
        return [(message.key, message.position, message.data, message.stored_at) for message in messages]

    assert await run() == await run()


async def test_a_published_message_does_not_change_with_the_callers_buffers(bus: MemoryBus) -> None:
    data, headers = bytearray(b"1"), {"a": "1"}
    await bus.publish(Outgoing("decisions", A, data, headers))  # type: ignore[arg-type]  # what a careless caller does
    data[0], headers["a"] = ord("2"), "2"
    last = await bus.last(DECISIONS, A)
    assert last is not None
    assert (last.data, dict(last.headers)) == (b"1", {"a": "1"})


async def test_a_message_above_the_brokers_limit_is_refused() -> None:
    bus = MemoryBus(MemoryBroker(max_message_bytes=1000))
    await bus.open()
    await bus.ensure([DECISIONS])
    with pytest.raises(BusError, match="limit of 1000 bytes"):
        await bus.publish(out("x" * 1000))
