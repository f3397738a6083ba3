"""The streams as a NATS operator sees them, and what happens when others have been there."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import RetentionPolicy, StorageType
from nats_support import fresh_prefix, nats_server

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus, NatsOptions
from headrace.schemas.errors import BusError
from headrace.schemas.streams import ACKS, DAY, DECISIONS, FPM, STATE, STREAMS, TRAFFIC, MiB

A = "ml/llama"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path_factory.mktemp("nats"), memory_bytes=64 * 1024 * MiB, store_bytes=64 * 1024 * MiB) as it:
        yield it


@pytest.fixture
def prefix() -> str:
    return fresh_prefix()


@pytest.fixture
async def bus(server: EmbeddedNats, prefix: str) -> AsyncIterator[NatsBus]:
    opened = NatsBus(server.url, prefix)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def jetstream(server: EmbeddedNats) -> AsyncIterator[JetStreamContext]:
    async with await nats.connect(server.url) as operator:
        yield operator.jetstream()


async def test_the_limits_on_the_server_are_those_of_the_table(
    bus: NatsBus, jetstream: JetStreamContext, prefix: str
) -> None:
    table = [*STREAMS.values(), replace(FPM, name="memory", in_memory=True)]
    await bus.ensure(table)
    for stream in table:
        config = (await jetstream.stream_info(f"{prefix}_{stream.name}".upper())).config
        assert config.subjects == [f"{prefix}.{stream.name}.*.*"]
        assert config.retention == RetentionPolicy.LIMITS
        assert config.storage == (StorageType.MEMORY if stream.in_memory else StorageType.FILE)
        assert config.max_msgs_per_subject == (1 if stream.last_only else -1)
        assert config.max_bytes == (-1 if stream.last_only else stream.keep_bytes)
        assert config.max_age == (0 if stream.last_only else stream.keep_s or 0)
        assert config.duplicate_window == 120
        assert config.allow_direct


async def test_subjects_can_be_read_by_people(bus: NatsBus, server: EmbeddedNats, prefix: str) -> None:
    await bus.ensure([DECISIONS])
    async with await nats.connect(server.url) as operator:
        subscription = await operator.subscribe(f"{prefix}.decisions.ml.*")
        await operator.flush()
        await bus.publish(Outgoing("decisions", "ml/llama-70b", b"{}", {"ce-id": "7"}))
        message = await subscription.next_msg(timeout=5)
        assert message.subject == f"{prefix}.decisions.ml.llama-70b"
        assert message.headers is not None
        assert message.headers["ce-id"] == "7"


async def test_a_foreign_stream_on_our_subjects_is_named(
    bus: NatsBus, jetstream: JetStreamContext, prefix: str
) -> None:
    await jetstream.add_stream(name=f"ARCHIVE-{prefix}", subjects=[f"{prefix}.>"])
    with pytest.raises(BusError, match=rf"taken by stream ARCHIVE-{prefix}\. Choose another prefix"):
        await bus.ensure([DECISIONS])


async def test_a_foreign_stream_with_our_name_is_left_alone(
    bus: NatsBus, jetstream: JetStreamContext, prefix: str
) -> None:
    name = f"{prefix}_DECISIONS".upper()
    await jetstream.add_stream(name=name, subjects=[f"elsewhere.{prefix}"])
    with pytest.raises(BusError, match=rf"{name} exists with the subjects .*not ours. Choose another prefix"):
        await bus.ensure([DECISIONS])
    assert (await jetstream.stream_info(name)).config.subjects == [f"elsewhere.{prefix}"]


async def test_a_change_of_storage_is_refused_with_the_remedy(bus: NatsBus) -> None:
    await bus.ensure([TRAFFIC])
    with pytest.raises(BusError, match=r"is in file storage and should be in memory.*delete it"):
        await bus.ensure([replace(TRAFFIC, in_memory=True)])


async def test_migration_leaves_what_the_table_does_not_decide(
    bus: NatsBus, jetstream: JetStreamContext, prefix: str
) -> None:
    await bus.ensure([TRAFFIC])
    name = f"{prefix}_TRAFFIC".upper()
    config = (await jetstream.stream_info(name)).config
    await jetstream.update_stream(config, description="ours", metadata={"team": "inference"}, deny_delete=True)
    await bus.ensure([replace(TRAFFIC, keep_s=2.0 * DAY, keep_bytes=10 * MiB)])
    config = (await jetstream.stream_info(name)).config
    assert (config.max_age, config.max_bytes) == (2 * DAY, 10 * MiB)
    assert (config.description, config.deny_delete) == ("ours", True)
    assert config.metadata is not None
    assert config.metadata["team"] == "inference"


async def test_limits_that_are_right_are_not_written_again(
    bus: NatsBus, server: EmbeddedNats, jetstream: JetStreamContext
) -> None:
    await bus.ensure([DECISIONS])
    async with await nats.connect(server.url) as operator:
        updates = await operator.subscribe("$JS.API.STREAM.UPDATE.>")
        await operator.flush()
        await bus.ensure([DECISIONS])
        await operator.flush()
        assert updates.pending_msgs == 0
        await bus.ensure([replace(DECISIONS, keep_bytes=MiB)])
        await operator.flush()
        assert updates.pending_msgs == 1


async def test_processes_that_migrate_at_once_agree(server: EmbeddedNats, prefix: str) -> None:
    buses = [NatsBus(server.url, prefix) for _ in range(6)]
    for bus in buses:
        await bus.open()
    await asyncio.gather(*(bus.ensure(STREAMS.values()) for bus in buses))
    smaller = [replace(stream, keep_bytes=MiB) for stream in STREAMS.values()]
    await asyncio.gather(*(bus.ensure(smaller) for bus in buses))
    for bus in buses:
        await bus.publish(Outgoing("fpm", A, b"1"))
        await bus.close()
    async with await nats.connect(server.url) as operator:
        for stream in STREAMS.values():
            info = await operator.jetstream().stream_info(f"{prefix}_{stream.name}".upper())
            assert info.config.max_bytes == (-1 if stream.last_only else MiB)  # one record a DGD is bound enough


async def test_two_prefixes_on_one_server_do_not_meet(server: EmbeddedNats) -> None:
    one, two = NatsBus(server.url, fresh_prefix()), NatsBus(server.url, f"{fresh_prefix()}.eu-west")
    for bus in (one, two):
        await bus.open()
        await bus.ensure([DECISIONS])
    await one.publish(Outgoing("decisions", A, b"1"))
    assert await two.last(DECISIONS, A) is None
    await one.close()
    await two.close()


async def test_decisions_and_acks_have_no_age_limit(bus: NatsBus, jetstream: JetStreamContext, prefix: str) -> None:
    await bus.ensure([DECISIONS, ACKS])
    for name in ("DECISIONS", "ACKS"):
        config = (await jetstream.stream_info(f"{prefix}_{name}".upper())).config
        assert (config.max_age, config.storage) == (0, StorageType.FILE)


async def test_a_snapshot_of_megabytes_is_kept_and_found(bus: NatsBus) -> None:
    await bus.ensure([STATE])
    for size in (5, 6):
        await bus.publish(Outgoing("state", A, b"x" * size * MiB))
    last = await bus.last(STATE, A)
    assert last is not None
    assert len(last.data) == 6 * MiB


async def test_replicas_are_asked_for_when_a_stream_is_created(server: EmbeddedNats, prefix: str) -> None:
    bus = NatsBus(NatsOptions(servers=(server.url,), replicas=3), prefix)
    await bus.open()
    with pytest.raises(BusError, match="replicas > 1 not supported in non-clustered mode"):
        await bus.ensure([DECISIONS])
    await bus.close()


async def test_a_message_of_another_publisher_is_read_like_ours(
    bus: NatsBus, jetstream: JetStreamContext, prefix: str
) -> None:
    await bus.ensure([DECISIONS])
    await jetstream.publish(f"{prefix}.decisions.ml.b%2Ec", b"{}", headers={"Nats-Msg-Id": "theirs", "x": "y"})
    [message] = await (await bus.read(DECISIONS, after=0)).next(timeout=5)
    assert (message.key, dict(message.headers)) == ("ml/b.c", {"x": "y"})


async def test_a_burst_is_read_at_speed_in_order(bus: NatsBus) -> None:
    small = replace(FPM, keep_bytes=64 * MiB, in_memory=True)
    await bus.ensure([small])
    reader = await bus.read(small)
    await bus.publish_many([Outgoing("fpm", A, b"%d" % i) for i in range(30_000)])
    got: list[int] = []
    while len(got) < 30_000:
        got += [int(message.data) for message in await reader.next(timeout=10, limit=5000)]
    assert got == list(range(30_000))
