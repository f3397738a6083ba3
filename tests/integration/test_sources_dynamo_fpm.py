"""FPMs from a real NATS server to a bus: all of them, through restarts, floods and an absent bus."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from bus_support import eventually, kept, memory_records
from nats.aio.client import Client
from nats_support import fresh_prefix, kill_server, nats_server

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.factory import open_bus
from headrace.connectors.bus.memory import MemoryBroker
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.sources.dynamo_fpm import DynamoFpmOptions, DynamoFpmSource
from headrace.connectors.sources.fpm_packer import Route
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import TOPIC, Fpm, FpmEnvelope, decode_fpm, encode_envelope, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.streams import DEADLETTERS, FPM, STREAMS

DGD = "ml/llama"


def subject(component: str = "backend", namespace: str = "dynamo", topic: str = TOPIC) -> str:
    return f"namespace.{namespace}.component.{component}.endpoint.generate.{topic}"


def envelope(sequence: int, publisher: int = 5) -> bytes:
    payload = encode_fpm(Fpm(worker_id=str(publisher), counter_id=sequence))
    return encode_envelope(FpmEnvelope(publisher, sequence, 1000 + sequence, TOPIC, payload))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path_factory.mktemp("dynamo")) as running:
        yield running


@pytest.fixture
async def engine(server: EmbeddedNats) -> AsyncIterator[Client]:
    """A connection that publishes as Dynamo's engines do: core NATS, no headers, no reply."""
    client = await nats.connect(server.url)
    yield client
    await client.close()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
async def records(broker: MemoryBroker) -> AsyncIterator[RecordBus]:
    records = await memory_records(broker.clock, broker=broker)
    yield records
    await records.bus.close()


@asynccontextmanager
async def running(records: RecordBus, url: str, **options: object) -> AsyncIterator[DynamoFpmSource]:
    """A source that receives, and has published everything when the block is over."""
    made = DynamoFpmOptions(servers=(url,), routes=(Route("dynamo", DGD),), **options)  # type: ignore[arg-type]
    source = DynamoFpmSource(made, records.publish_many)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(source.run(stop))
        await eventually(source.connected.is_set)
        yield source
        stop.set()


async def sequences(records: RecordBus, publisher: int = 5) -> list[int]:
    """The sequences of a publisher on the bus, in their order there."""
    batches = [record for record in await kept(records, FPM) if isinstance(record, FpmBatch)]
    return [item.sequence for batch in batches for item in batch.items if item.publisher_id == publisher]


async def test_every_fpm_is_on_the_bus_in_order(server: EmbeddedNats, engine: Client, records: RecordBus) -> None:
    async with running(records, server.url) as source:
        for n in range(5000):
            await engine.publish(subject(), envelope(n))
        await eventually(lambda: source.packer.counters.received == 5000)
    assert await sequences(records) == list(range(5000))
    counters = source.packer.counters
    assert (counters.missing, counters.repeated, counters.bad, source.slow_consumer) == (0, 0, 0, 0)
    assert source.outbox.counters.published == 5000


async def test_roles_come_from_the_component_and_payloads_stay_as_they_were(
    server: EmbeddedNats, engine: Client, records: RecordBus
) -> None:
    async with running(records, server.url) as source:
        await engine.publish(subject("prefill"), envelope(0, publisher=7))
        await engine.publish(subject("backend"), envelope(0, publisher=8))
        await eventually(lambda: source.packer.counters.received == 2)
    batches = [record for record in await kept(records, FPM) if isinstance(record, FpmBatch)]
    assert {batch.role: decode_fpm(batch.items[0].payload).worker_id for batch in batches} == {
        "prefill": "7",
        "decode": "8",
    }


async def test_a_quiet_plane_gives_small_batches_and_a_busy_one_full_ones(
    server: EmbeddedNats, engine: Client, records: RecordBus
) -> None:
    async with running(records, server.url, flush_s=3600.0, max_items=100, keep_items=1000) as source:
        for n in range(250):
            await engine.publish(subject(), envelope(n))
        await eventually(lambda: source.packer.counters.received == 250)
        await eventually(lambda: source.outbox.counters.published == 200)
    sizes = [len(record.items) for record in await kept(records, FPM) if isinstance(record, FpmBatch)]
    assert sizes == [100, 100, 50]  # the last one when the source stopped


async def test_other_topics_and_namespaces_are_not_even_received(
    server: EmbeddedNats, engine: Client, records: RecordBus
) -> None:
    async with running(records, server.url, namespace="dynamo") as source:
        await engine.publish(subject(topic="kv_metrics"), b"x")
        await engine.publish(subject(namespace="other"), envelope(0))
        await engine.publish(subject(), envelope(0))
        await eventually(lambda: source.packer.counters.received == 1)
    assert await sequences(records) == [0]


async def test_bad_envelopes_are_dead_letters_and_the_source_goes_on(
    server: EmbeddedNats, engine: Client, records: RecordBus
) -> None:
    async with running(records, server.url) as source:
        await engine.publish(subject(), b"garbage")
        await engine.publish(subject(), b"")
        await engine.publish(subject(), envelope(0))
        await eventually(lambda: source.packer.counters.received == 3)
    letters = [record for record in await kept(records, DEADLETTERS) if isinstance(record, DeadLetter)]
    assert sorted(letter.data for letter in letters) == [b"", b"garbage"]
    assert {(letter.reason, letter.stream, letter.dgd) for letter in letters} == {("undecodable", subject(), DGD)}
    assert await sequences(records) == [0]


async def test_a_flood_of_bad_envelopes_is_counted_but_not_all_kept(
    server: EmbeddedNats, engine: Client, records: RecordBus
) -> None:
    async with running(records, server.url, flush_s=0.5) as source:
        for n in range(2000):
            await engine.publish(subject(), b"garbage %d" % n)
        await eventually(lambda: source.packer.counters.bad == 2000)
    assert 20 <= (await records.bus.info(DEADLETTERS)).messages < 500


async def test_names_that_nobody_mapped_are_said_once_with_the_mapped_ones(
    server: EmbeddedNats, engine: Client, records: RecordBus, caplog: pytest.LogCaptureFixture
) -> None:  # row 62, dynamo#3106
    with caplog.at_level(logging.WARNING, "headrace"):
        async with running(records, server.url, flush_s=0.01) as source:
            for n in range(50):
                await engine.publish(subject("vllmworker"), envelope(n))
                await asyncio.sleep(0.001)
            await eventually(lambda: source.packer.counters.unmapped == 50)
            await eventually(lambda: "vllmworker" in caplog.text)
    assert caplog.text.count("'vllmworker'") == 1
    assert "namespace 'dynamo' component 'backend'" in caplog.text
    assert await sequences(records) == []


async def test_while_the_bus_is_away_the_oldest_are_dropped_and_the_rest_arrives(
    server: EmbeddedNats, engine: Client, records: RecordBus, broker: MemoryBroker
) -> None:
    async with running(records, server.url, flush_s=0.01, max_items=50, keep_items=200) as source:
        broker.available = False
        for n in range(1000):
            await engine.publish(subject(), envelope(n))
            if n % 50 == 49:
                await engine.flush()
                await asyncio.sleep(0.02)
        await eventually(lambda: source.packer.counters.received == 1000)
        await eventually(lambda: source.outbox.counters.dropped > 0)
        broker.available = True
        await eventually(lambda: source.outbox.waiting == 0)
    found = await sequences(records)
    assert found == sorted(set(found))
    assert found[-1] == 999
    assert len(found) + source.outbox.counters.dropped == 1000


async def test_the_source_follows_a_server_that_comes_back_and_counts_what_it_missed(
    tmp_path: Path, records: RecordBus, caplog: pytest.LogCaptureFixture
) -> None:
    with nats_server(tmp_path / "store") as server, caplog.at_level(logging.WARNING, "headrace"):
        async with running(records, server.url) as source:
            engine = await nats.connect(server.url)
            await engine.publish(subject(), envelope(0))
            await engine.flush()
            await eventually(lambda: source.packer.counters.received == 1)
            await engine.close()
            kill_server(server)
            await eventually(lambda: not source.connected.is_set())
            server.start()
            await eventually(source.connected.is_set)
            engine = await nats.connect(server.url)
            await engine.publish(subject(), envelope(4))
            await engine.close()
            await eventually(lambda: source.packer.counters.received == 2)
    assert await sequences(records) == [0, 4]
    assert source.packer.counters.missing == 3
    assert "lost Dynamo's NATS" in caplog.text


async def test_a_server_that_is_not_there_yet_is_waited_for_and_said(
    tmp_path: Path, records: RecordBus, caplog: pytest.LogCaptureFixture
) -> None:
    with nats_server(tmp_path / "store") as server:
        server.stop()
        url = server.url.replace("nats://", "nats://user:secret@")
        source = DynamoFpmSource(DynamoFpmOptions(servers=(url,), routes=(Route("dynamo", DGD),)), records.publish_many)
        stop = asyncio.Event()
        with caplog.at_level(logging.WARNING, "headrace"):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(source.run(stop))
                await eventually(lambda: "no connection to Dynamo's NATS" in caplog.text)
                server.start()
                await eventually(source.connected.is_set)
                stop.set()
    assert server.url in caplog.text
    assert "secret" not in caplog.text


async def test_a_source_stops_while_the_server_is_away(records: RecordBus) -> None:
    source = DynamoFpmSource(
        DynamoFpmOptions(servers=("nats://127.0.0.1:1",), routes=(Route("dynamo", DGD),)), records.publish_many
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(source.run(stop))
        await asyncio.sleep(0.05)
        stop.set()


async def test_batches_reach_a_bus_on_the_same_server_once_though_they_are_sent_twice(
    server: EmbeddedNats, engine: Client
) -> None:
    """Message ids: what a source publishes again after a lost answer, the bus stores once."""
    async with open_bus(server.url, fresh_prefix()) as bus:
        await bus.ensure(STREAMS.values())
        records = RecordBus(bus, "source", lambda: 1000.0)
        made = DynamoFpmOptions(servers=(server.url,), routes=(Route("dynamo", DGD),))

        async def twice(batch: object) -> None:
            await records.publish_many(batch)  # type: ignore[arg-type]
            await records.publish_many(batch)  # type: ignore[arg-type]

        source = DynamoFpmSource(made, twice)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(source.run(stop))
            await eventually(source.connected.is_set)
            for n in range(500):
                await engine.publish(subject(), envelope(n))
            await eventually(lambda: source.packer.counters.received == 500)
            stop.set()
        assert await sequences(records) == list(range(500))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"servers": ()}, "no NATS server"),
        ({"flush_s": 0.0}, "flush_s"),
        ({"max_items": 0}, "max_items"),
        ({"keep_items": 10}, "keep_items"),
        ({"namespace": "a.b"}, "cannot be a Dynamo namespace"),
        ({"namespace": "*"}, "cannot be a Dynamo namespace"),
    ],
)
def test_options_that_cannot_be_right_are_refused(options: dict[str, object], word: str) -> None:
    given: dict[str, object] = {"servers": ("nats://127.0.0.1:4222",), "routes": (Route("dynamo", DGD),), **options}
    with pytest.raises(ConfigError, match=word):
        DynamoFpmOptions(**given)  # type: ignore[arg-type]
