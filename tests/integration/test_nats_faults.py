"""What may happen to a NATS server and the way to it, and what must not happen to the messages."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats_support import Proxy, kill_server, nats_server

from headrace.connectors.bus.base import Message, Outgoing, Reader
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus, NatsOptions
from headrace.schemas.errors import BusError, Fenced
from headrace.schemas.streams import DECISIONS, FPM, STREAMS, TRAFFIC

A = "ml/llama"
FAST = replace(FPM, in_memory=True)  # lost with the server that held it


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path / "store") as running:
        yield running


@contextlib.asynccontextmanager
async def open_bus(url: str, patience_s: float = 30.0) -> AsyncIterator[NatsBus]:
    bus = NatsBus(replace(NatsOptions.from_url(url), patience_s=patience_s))
    await bus.open()
    try:
        await bus.ensure([FAST if stream is FPM else stream for stream in STREAMS.values()])
        yield bus
    finally:
        await bus.close()


def out(data: str, key: str = A, stream: str = "decisions", message_id: str | None = None) -> Outgoing:
    return Outgoing(stream, key, data.encode(), message_id=message_id)


async def read(reader: Reader, count: int, timeout: float = 20) -> list[str]:
    """Exactly `count` messages, and a look that no more are there."""
    found: list[Message] = []
    while len(found) < count:
        came = await reader.next(timeout=timeout)
        assert came, f"{len(found)} of {count} messages came"
        found += came
    assert await reader.next(timeout=0.1) == []
    return [message.data.decode() for message in found]


@pytest.mark.slow
async def test_ten_kills_under_load_lose_double_and_reorder_nothing(
    server: EmbeddedNats, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged: Counter[str] = Counter()
    read_back: dict[str, list[int]] = {"ml/one": [], "ml/many": [], "ml/chain": []}
    stop = asyncio.Event()
    async with open_bus(server.url) as writer, open_bus(server.url) as watcher:
        reader = await watcher.read(DECISIONS, after=0)

        async def one_by_one() -> None:
            while not stop.is_set():
                await writer.publish(out(f"{acknowledged['ml/one']}", "ml/one"))
                acknowledged["ml/one"] += 1

        async def in_batches() -> None:
            while not stop.is_set():
                start = acknowledged["ml/many"]
                await writer.publish_many([out(f"{i}", "ml/many") for i in range(start, start + 100)])
                acknowledged["ml/many"] += 100
                await asyncio.sleep(0.01)

        async def compare_and_append() -> None:
            last = 0
            while not stop.is_set():
                last = await writer.publish(out(f"{acknowledged['ml/chain']}", "ml/chain"), expect_last=last)
                acknowledged["ml/chain"] += 1

        async def watch() -> None:
            while True:
                came = await reader.next(timeout=1)
                if writing.done() and not came:
                    return
                for message in came:
                    read_back[message.key].append(int(message.data))

        async with asyncio.TaskGroup() as tasks:
            writing = asyncio.gather(one_by_one(), in_batches(), compare_and_append())
            tasks.create_task(watch())
            for _ in range(10):
                await asyncio.sleep(0.7)
                await asyncio.to_thread(kill_server, server)
                await asyncio.to_thread(server.start)
            await asyncio.sleep(0.5)
            stop.set()
            await writing

    doubled = {key: len(got) - len(set(got)) for key, got in read_back.items()}
    lost = {key: acknowledged[key] - len(set(got)) for key, got in read_back.items()}
    with capsys.disabled():
        print(f"\n10 kills: acknowledged {dict(acknowledged)}, lost {lost}, doubled {doubled}")
    assert set(lost.values()) == {0}
    assert set(doubled.values()) == {0}
    for key, got in read_back.items():
        assert acknowledged[key] > 10
        assert got == list(range(acknowledged[key]))


async def test_a_bus_that_is_opened_before_its_server_waits_for_it(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        url = server.url
        server.stop()
        bus = NatsBus(url)
        opening = asyncio.create_task(bus.open())
        await asyncio.sleep(0.3)
        assert not opening.done()
        await asyncio.to_thread(server.start)
        await opening
        await bus.ensure([DECISIONS])
        assert await bus.publish(out("1")) == 1
        await bus.close()


async def test_a_server_that_is_not_there_is_named_with_the_remedy(unused_tcp_port: int) -> None:
    bus = NatsBus(NatsOptions(servers=(f"nats://127.0.0.1:{unused_tcp_port}",), patience_s=0.5))
    with pytest.raises(BusError, match=rf"127\.0\.0\.1:{unused_tcp_port}.*is the server running"):
        await bus.open()
    await bus.close()


async def test_publishing_to_a_stopped_server_fails_after_the_patience_and_works_when_it_is_back(
    server: EmbeddedNats,
) -> None:
    async with open_bus(server.url, patience_s=1.0) as bus:
        await bus.publish(out("1"))
        await asyncio.to_thread(server.stop)
        with pytest.raises(BusError, match="could not be reached within 1 s"):
            await bus.publish(out("2"))
        with pytest.raises(BusError, match="could not be reached within 1 s"):
            await bus.publish_many([out("2")])
        assert not bus.connected
        await asyncio.to_thread(server.start)
        await bus.publish(out("3"))
        assert bus.connected
        assert await read(await bus.read(DECISIONS, after=0), 2) == ["1", "3"]


async def test_a_reader_outlives_a_restart_with_no_loss_and_no_double(server: EmbeddedNats) -> None:
    async with open_bus(server.url) as bus:
        reader = await bus.read(TRAFFIC, after=0)
        await bus.publish_many([out(f"{i}", stream="traffic") for i in range(2000)])
        first = await reader.next(timeout=5, limit=700)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await bus.publish_many([out(f"{i}", stream="traffic") for i in range(2000, 3000)])
        rest = await read(reader, 3000 - len(first))
        assert [message.data.decode() for message in first] + rest == [f"{i}" for i in range(3000)]


async def test_a_reader_survives_that_its_consumer_is_deleted(server: EmbeddedNats) -> None:
    async with open_bus(server.url) as bus, await nats.connect(server.url) as operator:
        reader = await bus.read(DECISIONS, after=0)
        await bus.publish(out("1"))
        assert await read(reader, 1) == ["1"]
        jetstream = operator.jetstream()
        for consumer in await jetstream.consumers_info("HEADRACE_DECISIONS"):
            await jetstream.delete_consumer("HEADRACE_DECISIONS", consumer.name)
        await bus.publish(out("2"))
        assert await read(reader, 1) == ["2"]


async def test_a_reader_goes_on_when_its_stream_is_deleted_and_made_again(server: EmbeddedNats) -> None:
    async with open_bus(server.url) as bus, await nats.connect(server.url) as operator:
        reader = await bus.read(DECISIONS, after=0)
        await bus.publish_many([out(f"{i}") for i in range(10)])
        assert len(await read(reader, 10)) == 10
        await operator.jetstream().delete_stream("HEADRACE_DECISIONS")
        await bus.publish(out("anew"))  # by the bus itself, which had ensured it
        assert await read(reader, 1) == ["anew"]


async def test_a_stream_in_memory_is_made_again_after_a_restart_and_its_positions_still_rise(
    server: EmbeddedNats,
) -> None:
    async with open_bus(server.url) as bus:
        reader = await bus.read(FAST, after=0)
        before = await bus.publish(out("1", stream="fpm"))
        assert await read(reader, 1) == ["1"]
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        assert await bus.publish(out("2", stream="fpm")) > before
        assert await read(reader, 1) == ["2"]
        assert (await bus.info(FAST)).messages == 1


async def test_a_stream_in_memory_is_made_again_for_one_who_only_reads(server: EmbeddedNats) -> None:
    async with open_bus(server.url) as bus:
        reader = await bus.read(FAST)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        async with open_bus(server.url) as other:
            await other.publish(out("1", stream="fpm"))
            assert await read(reader, 1) == ["1"]


async def test_a_server_that_hangs_is_left_and_found_again(server: EmbeddedNats) -> None:
    async with open_bus(server.url, patience_s=60) as bus:
        reader = await bus.read(DECISIONS, after=0)
        await bus.publish(out("1"))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            publishing = asyncio.create_task(bus.publish(out("2")))
            async with asyncio.timeout(20):
                while bus.connected:  # noqa: ASYNC110  # there is nothing to wait on
                    await asyncio.sleep(0.1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await publishing
        assert await read(reader, 2) == ["1", "2"]


async def test_a_writer_whose_acknowledgement_was_lost_is_not_fenced(server: EmbeddedNats) -> None:
    async with Proxy(server.port) as proxy, open_bus(proxy.url) as bus, open_bus(server.url) as other:
        first = await bus.publish(out("1"), expect_last=0)
        proxy.deaf = True
        publishing = asyncio.create_task(bus.publish(out("2"), expect_last=first))
        await stored(other, 2)
        proxy.deaf = False
        proxy.cut()
        assert await publishing == first + 1
        assert (await other.info(DECISIONS)).messages == 2


async def test_a_writer_whose_acknowledgement_was_lost_long_ago_knows_its_message_by_its_id(
    server: EmbeddedNats,
) -> None:
    async with Proxy(server.port) as proxy, open_bus(proxy.url) as bus, open_bus(server.url) as other:
        await forget_ids_at_once(server)
        proxy.deaf = True
        publishing = asyncio.create_task(bus.publish(out("mine"), expect_last=0))
        await stored(other, 1)
        await asyncio.sleep(1)
        proxy.deaf = False
        proxy.cut()
        assert await publishing == 1
        assert (await other.info(DECISIONS)).messages == 1


async def test_a_writer_whose_acknowledgement_was_lost_long_ago_is_fenced_when_another_wrote_on(
    server: EmbeddedNats,
) -> None:
    async with Proxy(server.port) as proxy, open_bus(proxy.url) as bus, open_bus(server.url) as other:
        await forget_ids_at_once(server)
        proxy.deaf = True
        publishing = asyncio.create_task(bus.publish(out("mine"), expect_last=0))
        await stored(other, 1)
        await other.publish(out("theirs"), expect_last=1)
        await asyncio.sleep(1)
        proxy.deaf = False
        proxy.cut()
        with pytest.raises(Fenced):
            await publishing


async def stored(bus: NatsBus, count: int) -> None:
    """Until the decision stream has so many messages."""
    async with asyncio.timeout(5):
        while (await bus.info(DECISIONS)).messages < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def forget_ids_at_once(server: EmbeddedNats) -> None:
    """Shorten the duplicate window, as if the outage had been longer than it."""
    async with await nats.connect(server.url) as operator:
        jetstream = operator.jetstream()
        config = (await jetstream.stream_info("HEADRACE_DECISIONS")).config
        await jetstream.update_stream(config, duplicate_window=0.1)


@pytest.mark.slow
async def test_a_connection_that_is_cut_again_and_again_keeps_every_batch_in_order_and_once(
    server: EmbeddedNats,
) -> None:
    async with Proxy(server.port) as proxy, open_bus(proxy.url) as bus:
        reader = await bus.read(TRAFFIC, after=0)
        done = asyncio.Event()

        async def cut_now_and_then() -> None:
            while not done.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await done.wait()
                proxy.cut()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cut_now_and_then())
            for start in range(0, 12_000, 4000):
                await bus.publish_many([out(f"{i}", stream="traffic") for i in range(start, start + 4000)])
            done.set()
        assert await read(reader, 12_000) == [f"{i}" for i in range(12_000)]


async def test_a_server_that_is_asked_too_much_at_once_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = EmbeddedNats._config_text
    monkeypatch.setattr(
        EmbeddedNats,
        "_config_text",
        lambda self, ports: plain(self, ports).replace("jetstream {", "jetstream {\n  max_buffered_msgs: 20"),
    )
    with nats_server(tmp_path) as server:
        async with open_bus(server.url) as bus:
            await bus.publish_many([out(f"{i}", key=f"ml/d{i}") for i in range(1000)])
            assert sorted(await read(await bus.read(DECISIONS, after=0), 1000), key=int) == [
                f"{i}" for i in range(1000)
            ]


async def test_a_gap_in_what_arrives_is_noticed_and_filled(server: EmbeddedNats) -> None:
    async with Proxy(server.port) as proxy, open_bus(proxy.url) as bus, open_bus(server.url) as other:
        reader = await bus.read(DECISIONS, after=0)
        await other.publish(out("0"))
        assert await read(reader, 1) == ["0"]
        proxy.deaf = True  # bytes vanish; the connection stays
        await other.publish_many([out(f"{i}") for i in range(1, 20)])
        await asyncio.sleep(0.2)
        proxy.deaf = False
        await other.publish_many([out(f"{i}") for i in range(20, 40)])
        assert await read(reader, 39) == [f"{i}" for i in range(1, 40)]


async def test_a_gap_at_the_end_of_what_arrives_is_noticed_by_the_heartbeat(server: EmbeddedNats) -> None:
    async with Proxy(server.port) as proxy, open_bus(proxy.url) as bus, open_bus(server.url) as other:
        reader = await bus.read(DECISIONS, after=0)
        await other.publish(out("0"))
        assert await read(reader, 1) == ["0"]
        proxy.deaf = True
        await other.publish_many([out(f"{i}") for i in range(1, 20)])
        await asyncio.sleep(0.2)
        proxy.deaf = False
        assert await read(reader, 19) == [f"{i}" for i in range(1, 20)]


async def test_a_closed_reader_leaves_no_consumer_on_the_server(server: EmbeddedNats) -> None:
    async with open_bus(server.url) as bus, await nats.connect(server.url) as operator:
        for _ in range(5):
            await (await bus.read(DECISIONS, after=0)).close()
        jetstream = operator.jetstream()
        async with asyncio.timeout(5):
            while await jetstream.consumers_info("HEADRACE_DECISIONS"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_slow_reader_holds_the_server_back_instead_of_filling_memory(server: EmbeddedNats) -> None:
    async with open_bus(server.url) as bus, await nats.connect(server.url) as operator:
        reader = await bus.read(TRAFFIC, after=0)
        data = "x" * 50_000
        await bus.publish_many([out(data, stream="traffic") for _ in range(1500)])
        await asyncio.sleep(1.5)
        [consumer] = await operator.jetstream().consumers_info("HEADRACE_TRAFFIC")
        assert consumer.num_pending is not None
        assert consumer.num_pending > 300  # the server still has them
        assert len(await read(reader, 1500)) == 1500
