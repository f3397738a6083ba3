"""A cluster of three: copies of the streams, and the loss of one server after the other."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats_support import kill_server

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus, NatsOptions
from headrace.schemas.streams import DECISIONS, INVENTORY, TRAFFIC, MiB

STREAMS = [replace(stream, keep_bytes=64 * MiB) for stream in (DECISIONS, TRAFFIC, INVENTORY)]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[EmbeddedNats]]:
    ports = free_ports(3)
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers = [
        EmbeddedNats(
            tmp_path / f"n{i}",
            config=f"server_name: n{i}\ncluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{routes}] }}",
        )
        for i, port in enumerate(ports)
    ]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()


async def leader(servers: list[EmbeddedNats], stream: str) -> int:
    """Which server leads a stream, when all its copies are there and up to date."""
    async with asyncio.timeout(60), await nats.connect([server.url for server in servers]) as operator:
        jetstream = operator.jetstream(timeout=1)
        while True:
            with contextlib.suppress(nats.errors.TimeoutError, nats.js.errors.Error):
                cluster = (await jetstream.stream_info(stream)).cluster
                if cluster and cluster.leader and cluster.replicas and all(peer.current for peer in cluster.replicas):
                    return int(cluster.leader[1:])
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_every_leader_may_be_killed_once_and_nothing_is_lost_or_doubled(
    cluster: list[EmbeddedNats], capsys: pytest.CaptureFixture[str]
) -> None:
    options = NatsOptions(servers=tuple(server.url for server in cluster), replicas=3, patience_s=60)
    writer, watcher = NatsBus(options), NatsBus(options)
    await writer.open()
    await watcher.open()
    await asyncio.gather(writer.ensure(STREAMS), watcher.ensure(STREAMS))
    reader = await watcher.read(DECISIONS, after=0)
    written = {"ml/chain": 0, "ml/many": 0}
    stop = asyncio.Event()

    async def compare_and_append() -> None:
        last = 0
        while not stop.is_set():
            last = await writer.publish(
                Outgoing("decisions", "ml/chain", b"%d" % written["ml/chain"]), expect_last=last
            )
            written["ml/chain"] += 1

    async def in_batches() -> None:
        while not stop.is_set():
            start = written["ml/many"]
            await writer.publish_many([Outgoing("decisions", "ml/many", b"%d" % i) for i in range(start, start + 50)])
            written["ml/many"] += 50
            await asyncio.sleep(0.02)

    async def both_go_on() -> None:
        before = dict(written)
        while any(written[key] < before[key] + 10 for key in written):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as writing:
        writing.create_task(compare_and_append())
        writing.create_task(in_batches())
        for _ in range(3):
            await both_go_on()
            lost = cluster[await leader(cluster, "HEADRACE_DECISIONS")]
            await asyncio.to_thread(kill_server, lost)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(lost.start)
        await both_go_on()
        stop.set()

    read: dict[str, list[int]] = {"ml/chain": [], "ml/many": []}
    while sum(map(len, read.values())) < sum(written.values()):
        came = await reader.next(timeout=30)
        assert came, f"read { ({key: len(got) for key, got in read.items()}) } of {written}"
        for message in came:
            read[message.key].append(int(message.data))
    assert await reader.next(timeout=0.5) == []
    with capsys.disabled():
        print(f"\n3 leaders killed: acknowledged {written}, read { ({key: len(got) for key, got in read.items()}) }")
    assert read["ml/chain"] == list(range(written["ml/chain"]))
    assert sorted(read["ml/many"]) == list(range(written["ml/many"]))  # a change of leader may cost a batch its order
    await writer.close()
    await watcher.close()
