"""What every bus must do. One suite for all of them; a bus that is added passes it with no new test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

import kafka_support
import pytest
from nats_support import fresh_prefix, nats_server

from headrace.connectors.bus.base import Bus, Message, Outgoing, Reader, StreamInfo
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.kafka import KafkaBus
from headrace.connectors.bus.memory import MemoryBroker, MemoryBus
from headrace.connectors.bus.nats import NatsBus
from headrace.schemas.errors import BusError, Fenced
from headrace.schemas.streams import ACKS, DECISIONS, FPM, INVENTORY, TRAFFIC, MiB, Stream

# Small limits, since a server reserves what its streams may hold.
LOG = replace(DECISIONS, keep_bytes=64 * MiB)
ACK_LOG = replace(ACKS, keep_bytes=8 * MiB)
FAST = replace(FPM, keep_bytes=64 * MiB, in_memory=True)
AGED = replace(TRAFFIC, keep_bytes=8 * MiB)
LAST = INVENTORY
GiB = 1024 * MiB
STREAMS = [LOG, ACK_LOG, FAST, AGED, LAST]

A, B = "ml/llama", "ml/qwen"

# How many messages of 10 kB a stream of one MiB may keep: Kafka drops whole segments, of a MiB.
MOST_OF_A_MIB = {"memory": 110, "nats": 110, "kafka": 250}
# Kafka's count includes what was replaced and not yet compacted, and its own marks.
COUNTS_EXACTLY = ("memory", "nats")

Connect = Callable[[], Awaitable[Bus]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    # Every test has streams of its own there; limits are reserved, not used.
    with nats_server(tmp_path_factory.mktemp("nats"), memory_bytes=64 * GiB, store_bytes=64 * GiB) as running:
        yield running


@pytest.fixture(params=["memory", "nats", "kafka"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def connect(request: pytest.FixtureRequest, kind: str) -> AsyncIterator[Connect]:
    """Opens another bus on the same streams, as another process would."""
    if kind == "memory":
        broker = MemoryBroker()

        def make() -> Bus:
            return MemoryBus(broker)
    elif kind == "kafka":
        where, topics = request.getfixturevalue("kafka").url + "?partitions=3", kafka_support.fresh_prefix()

        def make() -> Bus:
            return KafkaBus(where, topics)
    else:
        url, prefix = request.getfixturevalue("server").url, fresh_prefix()

        def make() -> Bus:
            return NatsBus(url, prefix)

    async with AsyncExitStack() as stack:

        async def connect() -> Bus:
            bus = make()
            await bus.open()
            stack.push_async_callback(bus.close)
            return bus

        yield connect


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    opened = await connect()
    await opened.ensure(STREAMS)
    return opened


def out(data: bytes | str, key: str = A, stream: str = "decisions", message_id: str | None = None) -> Outgoing:
    return Outgoing(stream, key, data.encode() if isinstance(data, str) else data, message_id=message_id)


async def read(reader: Reader, count: int, limit: int = 1000) -> list[Message]:
    """Exactly `count` messages, and a look that no more are there."""
    found: list[Message] = []
    while len(found) < count:
        came = await reader.next(timeout=10, limit=limit)
        assert came, f"{len(found)} of {count} messages came"
        found += came
    assert len(found) == count
    assert await reader.next(timeout=0.05) == []
    return found


def texts(messages: list[Message]) -> list[str]:
    return [message.data.decode() for message in messages]


def by_key(messages: list[Message]) -> dict[str, list[str]]:
    """The texts of each key, in order: what a bus with partitions promises of a whole stream."""
    found: dict[str, list[str]] = {}
    for message in messages:
        found.setdefault(message.key, []).append(message.data.decode())
    return found


async def trimmed(bus: Bus, stream: Stream, kind: str) -> StreamInfo:
    """What a stream of one MiB holds, once the broker has dropped what is too much."""
    async with asyncio.timeout(20):
        while (info := await bus.info(stream)).messages > MOST_OF_A_MIB[kind]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the broker tells nobody
    return info


async def test_what_is_published_is_read_with_all_its_parts(bus: Bus) -> None:
    headers = {"ce-id": "7", "Content-Type": "application/json", "Status": "404", "Description": "none", "leer": ""}
    position = await bus.publish(Outgoing("decisions", A, b"\x00\xff", headers, "id-7"))
    [message] = await read(await bus.read(LOG, after=0), 1)
    assert (message.stream, message.key, message.position) == ("decisions", A, position)
    assert (message.data, dict(message.headers)) == (b"\x00\xff", headers)
    assert message.stored_at > 0
    assert await bus.last(LOG, A) == message


async def test_messages_of_a_key_are_read_in_the_order_in_which_they_were_published(bus: Bus) -> None:
    for i in range(50):
        await bus.publish(out(f"{i}", key=A if i % 3 else B))
    messages = await read(await bus.read(LOG, after=0), 50)
    assert by_key(messages) == {
        A: [f"{i}" for i in range(50) if i % 3],
        B: [f"{i}" for i in range(50) if not i % 3],
    }
    for key in (A, B):
        positions = [message.position for message in messages if message.key == key]
        assert positions == sorted(set(positions))


async def test_many_messages_published_at_once_keep_their_order(bus: Bus) -> None:
    await bus.publish_many([out(f"{i}", key=f"ml/d{i % 7}", stream="fpm") for i in range(5000)])
    found = by_key(await read(await bus.read(FAST, after=0), 5000))
    assert found == {f"ml/d{d}": [f"{i}" for i in range(d, 5000, 7)] for d in range(7)}


async def test_publishing_nothing_is_allowed(bus: Bus) -> None:
    await bus.publish_many([])
    assert (await bus.info(LOG)).messages == 0


async def test_a_batch_may_go_to_several_streams(bus: Bus) -> None:
    await bus.publish_many([out("d"), out("f", stream="fpm"), out("e")])
    assert texts(await read(await bus.read(LOG, after=0), 2)) == ["d", "e"]
    assert texts(await read(await bus.read(FAST, after=0), 1)) == ["f"]


async def test_a_reader_resumes_after_a_position(bus: Bus) -> None:
    positions = [await bus.publish(out(f"{i}")) for i in range(6)]
    assert texts(await read(await bus.read(LOG, after=positions[3]), 2)) == ["4", "5"]


async def test_a_reader_with_no_position_gets_only_what_comes(bus: Bus) -> None:
    await bus.publish(out("before"))
    reader = await bus.read(LOG)
    await bus.publish(out("then"))
    assert texts(await read(reader, 1)) == ["then"]


async def test_a_position_beyond_the_end_reads_all_that_is_kept(bus: Bus) -> None:
    await bus.publish(out("1"))
    assert texts(await read(await bus.read(LOG, after=5000), 1)) == ["1"]


async def test_an_empty_list_comes_when_the_timeout_passes(bus: Bus) -> None:
    reader = await bus.read(LOG, after=0)
    assert await reader.next(timeout=0) == []
    assert await reader.next(timeout=0.02) == []
    await bus.publish(out("1"))
    assert texts(await read(reader, 1)) == ["1"]


async def test_a_reader_waits_for_the_first_message(bus: Bus) -> None:
    reader = await bus.read(LOG, after=0)
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0.02)
    await bus.publish(out("1"))
    assert texts(await waiting) == ["1"]


async def test_no_more_than_the_limit_is_returned_and_the_rest_follows(bus: Bus) -> None:
    await bus.publish_many([out(f"{i}") for i in range(10)])
    reader = await bus.read(LOG, after=0)
    while not (first := await reader.next(timeout=1, limit=3)):
        pass
    assert len(first) <= 3
    assert texts(first + await read(reader, 10 - len(first), limit=3)) == [f"{i}" for i in range(10)]


async def test_a_reader_of_one_key_sees_that_key_alone(bus: Bus) -> None:
    await bus.publish_many([out(f"{i}", key=f"ml/d{i % 5}") for i in range(500)])
    reader = await bus.read(LOG, key="ml/d3", after=0)
    assert texts(await read(reader, 100)) == [f"{i}" for i in range(3, 500, 5)]
    await bus.publish(out("other", key="ml/d4"))
    await bus.publish(out("mine", key="ml/d3"))
    assert texts(await read(reader, 1)) == ["mine"]


async def test_a_reader_sees_neither_other_streams_nor_keys_that_look_alike(bus: Bus) -> None:
    reader = await bus.read(LOG, key="ml/a", after=0)
    for key in ("ml/ab", "ml/a.b", "ml/A", "m/la", "ml/*", "ml/>", "ml./a", "a/ml"):
        await bus.publish(out("no", key=key))
    await bus.publish(out("no", key="ml/a", stream="acks"))
    await bus.publish(out("yes", key="ml/a"))
    assert texts(await read(reader, 1)) == ["yes"]


@pytest.mark.parametrize(
    "key", ["a/b.c", "a.b/c", "a/b c", "a/*", "*/>", "a/ü-日本", "a/%2E", "a/b%", "a/$JS", "a/b/c", 'a/"\\', "A/_-~"]
)
async def test_any_dgd_name_comes_back_as_it_was(bus: Bus, key: str) -> None:
    await bus.publish(out("1", key=key))
    assert [message.key for message in await read(await bus.read(LOG, after=0), 1)] == [key]
    assert [message.key for message in await read(await bus.read(LOG, key=key, after=0), 1)] == [key]
    last = await bus.last(LOG, key)
    assert last is not None
    assert last.key == key


@pytest.mark.parametrize("key", ["", "llama", "/llama", "ml/"])
async def test_a_key_without_namespace_and_name_is_refused(bus: Bus, key: str) -> None:
    with pytest.raises(BusError, match="namespace/name"):
        await bus.publish(out("1", key=key))
    with pytest.raises(BusError, match="namespace/name"):
        await bus.read(LOG, key=key)
    with pytest.raises(BusError, match="namespace/name"):
        await bus.last(LOG, key)


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"": "c"}, {"a": "b\r\nc: d"}, {"Nats-Msg-Id": "x"}, {"a": " b"}])
async def test_headers_that_would_not_come_back_are_refused(bus: Bus, headers: dict[str, str]) -> None:
    with pytest.raises(BusError, match="header"):
        await bus.publish(Outgoing("decisions", A, b"1", headers))
    assert (await bus.info(LOG)).messages == 0


async def test_last_is_the_newest_message_of_a_key(bus: Bus) -> None:
    await bus.publish(out("1"))
    position = await bus.publish(Outgoing("decisions", A, b"2", {"h": "v"}, "id"))
    await bus.publish(out("other", key=B))
    last = await bus.last(LOG, A)
    assert last is not None
    assert (last.data, last.position, dict(last.headers)) == (b"2", position, {"h": "v"})
    assert last == (await read(await bus.read(LOG, after=0), 3))[1]


async def test_last_of_a_key_that_was_never_written_is_none(bus: Bus) -> None:
    await bus.publish(out("1"))
    assert await bus.last(LOG, B) is None


async def test_a_stream_of_last_values_keeps_one_message_a_key(bus: Bus, kind: str) -> None:
    for i in range(10):
        await bus.publish(out(f"a{i}", key=A, stream="inventory"))
    await bus.publish(out("b", key=B, stream="inventory"))
    await bus.publish(out("a10", key=A, stream="inventory"))
    assert by_key(await read(await bus.read(LAST, after=0), 2)) == {A: ["a10"], B: ["b"]}
    assert (await bus.info(LAST)).messages == 2 or kind not in COUNTS_EXACTLY


async def test_of_two_writers_that_expect_the_same_last_message_one_is_fenced(connect: Connect, bus: Bus) -> None:
    other = await connect()
    first = await bus.publish(out("mine"), expect_last=0)
    with pytest.raises(Fenced, match=rf"{A} on decisions: the newest message is at {first}, not at 0"):
        await other.publish(out("theirs"), expect_last=0)
    second = await bus.publish(out("mine too"), expect_last=first)
    with pytest.raises(Fenced):
        await other.publish(out("theirs too"), expect_last=first)
    assert await other.publish(out("taken over"), expect_last=second) > second
    assert texts(await read(await bus.read(LOG, after=0), 3)) == ["mine", "mine too", "taken over"]


async def test_writers_that_race_for_a_place_leave_exactly_one_winner(connect: Connect, bus: Bus) -> None:
    writers = [bus, *[await connect() for _ in range(4)]]
    last = 0
    for turn in range(20):
        tries = [w.publish(out(f"{turn} by {i}"), expect_last=last) for i, w in enumerate(writers)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        won = [result for result in results if isinstance(result, int)]
        assert len(won) == 1
        assert sum(isinstance(result, Fenced) for result in results) == len(writers) - 1
        last = won[0]
    assert len(await read(await bus.read(LOG, after=0), 20)) == 20


async def test_writers_of_different_keys_do_not_fence_each_other(bus: Bus) -> None:
    last = await bus.publish(out("1", key=A), expect_last=0)
    await bus.publish(out("2", key=B), expect_last=0)
    assert await bus.publish(out("3", key=A), expect_last=last) > last


async def test_a_repeated_message_id_counts_once(connect: Connect, bus: Bus) -> None:
    first = await bus.publish(out("1", message_id="x"))
    await bus.publish(out("2", message_id="y"))
    assert await bus.publish(out("1", message_id="x")) == first
    assert await (await connect()).publish(out("1", message_id="x")) == first
    assert texts(await read(await bus.read(LOG, after=0), 2)) == ["1", "2"]


async def test_a_message_id_counts_once_on_each_stream(bus: Bus) -> None:
    await bus.publish(out("1", message_id="x"))
    await bus.publish(out("1", message_id="x", stream="acks"))
    assert (await bus.info(ACK_LOG)).messages == 1


async def test_a_writer_that_repeats_its_own_message_is_not_fenced(bus: Bus) -> None:
    first = await bus.publish(out("1", message_id="x"), expect_last=0)
    assert await bus.publish(out("1", message_id="x"), expect_last=0) == first


async def test_a_batch_that_is_published_again_counts_once(bus: Bus) -> None:
    batch = [out(f"{i}", message_id=f"id{i}") for i in range(2500)]
    await bus.publish_many(batch[:1700])
    await bus.publish_many(batch)
    assert texts(await read(await bus.read(LOG, after=0), 2500)) == [f"{i}" for i in range(2500)]


async def test_messages_without_an_id_are_all_kept(bus: Bus) -> None:
    await bus.publish(out("same"))
    await bus.publish(out("same"))
    await bus.publish_many([out("same"), out("same")])
    assert texts(await read(await bus.read(LOG, after=0), 4)) == ["same"] * 4


async def test_nothing_is_lost_while_the_reader_does_not_read(bus: Bus) -> None:
    reader = await bus.read(FAST, after=0)
    for start in range(0, 50_000, 10_000):
        await bus.publish_many([out(f"{i}", stream="fpm") for i in range(start, start + 10_000)])
    assert texts(await read(reader, 50_000)) == [f"{i}" for i in range(50_000)]


async def test_two_readers_do_not_disturb_each_other(bus: Bus) -> None:
    await bus.publish_many([out(f"{i}") for i in range(100)])
    one, two = await bus.read(LOG, after=0), await bus.read(LOG, after=0)
    assert len(await read(one, 100)) == 100
    await one.close()
    assert len(await read(two, 100)) == 100


async def test_a_message_of_a_megabyte_passes(bus: Bus) -> None:
    data = bytes(range(256)) * 4096
    await bus.publish(out(data))
    await bus.publish_many([out(data)] * 20)
    assert {message.data for message in await read(await bus.read(LOG, after=0), 21)} == {data}


async def test_a_message_above_the_limit_is_refused_with_its_size_and_the_limit(bus: Bus) -> None:
    too_much = out(b"x" * (9 * MiB))
    with pytest.raises(BusError, match=r"message of 9437\d{3} bytes .* limit of 8388608 bytes"):
        await bus.publish(too_much)
    with pytest.raises(BusError, match="limit of 8388608 bytes"):
        await bus.publish_many([out("before"), too_much])
    assert await bus.publish(out("goes on")) > 0
    assert texts(await read(await bus.read(LOG, after=0), 1)) == ["goes on"]


async def test_a_stream_that_was_never_ensured_is_refused_with_the_remedy(connect: Connect) -> None:
    bus = await connect()
    for attempt in (
        bus.publish(out("1")),
        bus.publish_many([out("1")]),
        bus.read(LOG, after=0),
        bus.info(LOG),
        bus.last(LOG, A),
    ):
        with pytest.raises(BusError, match=r"(?i)decisions does not exist.*ensure"):
            await attempt


async def test_ensuring_twice_changes_nothing(bus: Bus) -> None:
    await bus.publish(out("1"))
    await bus.ensure(STREAMS)
    assert texts(await read(await bus.read(LOG, after=0), 1)) == ["1"]


async def test_many_processes_may_ensure_at_once(connect: Connect) -> None:
    buses = [await connect() for _ in range(8)]
    await asyncio.gather(*(bus.ensure(STREAMS) for bus in buses))
    for i, bus in enumerate(buses):
        await bus.publish(out(f"{i}"))
    assert len(await read(await buses[0].read(LOG, after=0), 8)) == 8


async def test_a_changed_limit_is_migrated_and_the_oldest_messages_go(bus: Bus, kind: str) -> None:
    await bus.publish_many([out(b"%04d" % i + b"x" * 9996) for i in range(400)])
    await bus.ensure([replace(LOG, keep_bytes=MiB)])
    info = await trimmed(bus, LOG, kind)
    assert info.messages > 50
    assert info.size_bytes <= MOST_OF_A_MIB[kind] * 10_200
    kept = await read(await bus.read(LOG, after=0), info.messages)
    assert [int(message.data[:4]) for message in kept] == list(range(400 - info.messages, 400))


async def test_a_stream_may_become_one_of_last_values(bus: Bus) -> None:
    await bus.publish_many([out(f"{i}", key=A if i % 2 else B) for i in range(10)])
    await bus.ensure([replace(LOG, last_only=True)])
    await bus.publish_many([out("10", key=B), out("11", key=A)])  # older servers look at a key when it is written
    assert by_key(await read(await bus.read(LOG, after=0), 2)) == {A: ["11"], B: ["10"]}


async def test_a_reader_that_was_overtaken_by_retention_goes_on_at_the_oldest_message(bus: Bus, kind: str) -> None:
    small = replace(LOG, keep_bytes=MiB)
    await bus.ensure([small])
    first = await bus.publish(out("first"))
    await bus.publish_many([out(b"%04d" % i + b"x" * 9996) for i in range(400)])
    info = await trimmed(bus, small, kind)
    kept = await read(await bus.read(small, after=first), info.messages)
    assert kept[0].position == info.first_position > first + 1
    assert [int(message.data[:4]) for message in kept] == list(range(400 - info.messages, 400))


async def test_the_age_limit_drops_old_messages(bus: Bus) -> None:
    brief = replace(AGED, keep_s=1.0)
    await bus.ensure([brief])
    await bus.publish(out("old", stream="traffic"))
    async with asyncio.timeout(20):
        while (await bus.info(brief)).messages:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the broker tells nobody
    await bus.publish(out("new", stream="traffic"))
    assert texts(await read(await bus.read(brief, after=0), 1)) == ["new"]


async def test_info_counts_messages_keys_and_positions(bus: Bus, kind: str) -> None:
    keys = (0, 2) if kind in COUNTS_EXACTLY else (None, None)
    empty = await bus.info(LOG)
    assert (empty.messages, empty.keys, empty.size_bytes) == (0, keys[0], 0)
    positions = [await bus.publish(out("1", key=key)) for key in (A, B, A)]
    info = await bus.info(LOG)
    assert (info.name, info.messages, info.keys) == ("decisions", 3, keys[1])
    assert (info.first_position, info.last_position) == (positions[0], positions[2])
    assert info.size_bytes > 0


async def test_a_reader_that_is_closed_while_it_waits_returns_nothing(bus: Bus) -> None:
    reader = await bus.read(LOG, after=0)
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0.02)
    await reader.close()
    assert await waiting == []
    with pytest.raises(BusError, match="closed"):
        await reader.next()
    await reader.close()


async def test_closing_the_bus_ends_its_readers(connect: Connect, bus: Bus) -> None:
    other = await connect()
    reader = await other.read(LOG, after=0)
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0.02)
    await other.close()
    assert await waiting == []
    assert not other.connected
    assert bus.connected
    await other.close()


async def test_a_bus_that_is_not_open_refuses_to_work(connect: Connect, bus: Bus) -> None:
    other = await connect()
    await other.close()
    for attempt in (other.publish(out("1")), other.publish_many([out("1")]), other.ensure(STREAMS), other.info(LOG)):
        with pytest.raises(BusError, match="not open"):
            await attempt


async def test_a_reader_that_is_cancelled_while_it_waits_loses_nothing(bus: Bus) -> None:
    reader = await bus.read(LOG, after=0)
    for i in range(20):
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(0)
        publishing = asyncio.create_task(bus.publish(out(f"{i}")))
        await asyncio.sleep(0.001 * (i % 3))
        waiting.cancel()
        got = await asyncio.gather(waiting, publishing, return_exceptions=True)
        if not isinstance(got[0], asyncio.CancelledError):
            assert texts(got[0]) == [f"{i}"]  # type: ignore[arg-type]  # a list of messages
        else:
            assert texts(await reader.next(timeout=5)) == [f"{i}"]


async def test_some_keys_are_read_from_a_position_and_in_one_order_where_there_is_one(bus: Bus) -> None:
    names = ("a/one", "a/two", "a/three")
    for n in range(30):
        await bus.publish(out(f"{n}", key=names[n % 3]))
    reader = await bus.read_keys(LOG, ["a/one", "a/three"], 0)
    found = await read(reader, 20)
    for key in ("a/one", "a/three"):
        assert [int(m.data) for m in found if m.key == key] == list(range(names.index(key), 30, 3))
    if bus.one_order:
        assert [int(m.data) for m in found] == [n for n in range(30) if n % 3 != 1]
    after = max(m.position for m in found if int(m.data) < 15)
    behind = await bus.read_keys(LOG, ["a/two"], after)
    seen = [int(m.data) for m in await read(await bus.read(LOG, key="a/two", after=after), 5)]
    assert [int(m.data) for m in await read(behind, 5)] == seen
    await bus.publish(out("later", key="a/two"))
    assert [m.data for m in await read(behind, 1)] == [b"later"]
    with pytest.raises(BusError, match="at least one"):
        await bus.read_keys(LOG, [], 0)


async def test_a_stream_tells_which_keys_it_holds(bus: Bus) -> None:
    assert await bus.keys(LAST) == set()
    keys = {"a/b", "équipe/modèle", "ml/llama.v2", "x%/y"}
    for key in sorted(keys) * 2:
        await bus.publish(out("1", key=key, stream="inventory"))
    assert await bus.keys(LAST) == keys
    assert await bus.keys(LOG) == set()


async def test_a_bus_that_is_not_open_reads_no_keys(connect: Connect) -> None:
    opened = await connect()
    await opened.close()
    with pytest.raises(BusError):
        await opened.keys(LAST)
