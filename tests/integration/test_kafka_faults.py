"""What may happen to Kafka's brokers and the way to them, and what must not happen to the messages."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import errors
from kafka_support import Broker, KafkaCluster, fresh_prefix, kafka_cluster

from headrace.connectors.bus.base import Outgoing, Reader
from headrace.connectors.bus.kafka import KafkaBus, KafkaOptions
from headrace.connectors.bus.kafka.log import Stored, append
from headrace.schemas.errors import BusError, Fenced
from headrace.schemas.streams import ACKS, DECISIONS, STATE

A = "ml/llama"
KEYS = ("ml/one", "ml/many", "ml/chain")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with kafka_cluster(tmp_path_factory.mktemp("kafka"), 3) as cluster:
        yield cluster


@pytest.fixture
def three(brokers: KafkaCluster) -> KafkaCluster:
    """Three brokers that run."""
    for broker in brokers.brokers:
        if not broker.running():
            broker.start()
    brokers.wait()
    return brokers


@contextlib.asynccontextmanager
async def open_bus(cluster: KafkaCluster, prefix: str, patience_s: float = 60.0) -> AsyncIterator[KafkaBus]:
    bus = KafkaBus(replace(KafkaOptions.from_url(cluster.url), patience_s=patience_s, partitions=3), prefix)
    await bus.open()
    try:
        await bus.ensure([DECISIONS, ACKS, STATE])
        yield bus
    finally:
        await bus.close()


def out(data: str, key: str = A, message_id: str | None = None) -> Outgoing:
    return Outgoing("decisions", key, data.encode(), message_id=message_id)


async def read_back(reader: Reader, wanted: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    count = 0
    while count < wanted:
        came = await reader.next(timeout=60)
        assert came, f"{count} of {wanted} messages came"
        count += len(came)
        for message in came:
            found[message.key].append(int(message.data))
    return found


class Load:
    """Three writers, each of its own kind, until they are stopped; what was acknowledged."""

    def __init__(self, bus: KafkaBus) -> None:
        self.bus = bus
        self.stop = asyncio.Event()
        self.acknowledged: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(self._one_by_one(), self._in_batches(), self._compare_and_append())

    async def _one_by_one(self) -> None:
        while not self.stop.is_set():
            n = self.acknowledged["ml/one"]
            await self.bus.publish(out(f"{n}", "ml/one", f"one-{n}"))
            self.acknowledged["ml/one"] += 1
            await asyncio.sleep(0.01)

    async def _in_batches(self) -> None:
        while not self.stop.is_set():
            start = self.acknowledged["ml/many"]
            await self.bus.publish_many([out(f"{i}", "ml/many", f"many-{i}") for i in range(start, start + 20)])
            self.acknowledged["ml/many"] += 20
            await asyncio.sleep(0.02)

    async def _compare_and_append(self) -> None:
        last = 0
        while not self.stop.is_set():
            last = await self.bus.publish(out(f"{self.acknowledged['ml/chain']}", "ml/chain"), expect_last=last)
            self.acknowledged["ml/chain"] += 1
            await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_every_broker_may_be_killed_once_and_nothing_is_lost_doubled_or_reordered(
    three: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = fresh_prefix()
    async with open_bus(three, prefix) as writer, open_bus(three, prefix) as watcher:
        live = await watcher.read(DECISIONS, after=0)
        load = Load(writer)
        writing = asyncio.create_task(load.run())
        for broker in three.brokers:
            await progress(load, writing)
            await asyncio.to_thread(broker.kill)
            await progress(load, writing)
            broker.start()
            await asyncio.to_thread(three.wait)
        await progress(load, writing)
        load.stop.set()
        await writing
        seen = await read_back(live, sum(load.acknowledged.values()))
    lost = {key: load.acknowledged[key] - len(set(got)) for key, got in seen.items()}
    doubled = {key: len(got) - len(set(got)) for key, got in seen.items()}
    with capsys.disabled():
        print(f"\n3 kills: acknowledged {dict(load.acknowledged)}, lost {lost}, doubled {doubled}")
    for key, got in seen.items():
        assert got == list(range(load.acknowledged[key]))


async def progress(load: Load, writing: "asyncio.Task[None]") -> None:
    """Until every writer has got something through."""
    before = dict(load.acknowledged)
    async with asyncio.timeout(60):
        while not all(load.acknowledged[key] > before.get(key, 0) for key in KEYS):
            if writing.done():
                await writing
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_writers_and_readers_outlast_an_outage_of_the_whole_cluster(three: KafkaCluster) -> None:
    prefix = fresh_prefix()
    async with open_bus(three, prefix) as writer, open_bus(three, prefix) as watcher:
        reader = await watcher.read(DECISIONS, key=A, after=0)
        first = await writer.publish(out("1"), expect_last=0)
        assert [m.data for m in await reader.next(timeout=20)] == [b"1"]
        for broker in three.brokers:
            await asyncio.to_thread(broker.kill)
        publishing = asyncio.create_task(writer.publish(out("2"), expect_last=first))
        async with asyncio.timeout(30):
            while writer.connected or watcher.connected:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for broker in three.brokers:
            broker.start()
        await asyncio.to_thread(three.wait)
        assert await publishing > first
        assert [m.data for m in await reader.next(timeout=60)] == [b"2"]
        await writer.publish_many([out("3", message_id="3")])
        assert [m.data for m in await reader.next(timeout=60)] == [b"3"]
        assert writer.connected


async def test_what_cannot_be_stored_within_the_patience_is_an_error_and_may_be_published_again(
    three: KafkaCluster,
) -> None:
    prefix = fresh_prefix()
    async with open_bus(three, prefix, patience_s=2.0) as bus:
        await bus.publish_many([out("1", message_id="1")])
        last = await bus.publish(out("2", message_id="2"), expect_last=1 + place_of(bus))
        for broker in three.brokers:
            os.kill(broker.pid, signal.SIGSTOP)  # they hold their connections and say nothing
        try:
            with pytest.raises(BusError, match=r"within 2 s"):
                await bus.publish_many([out("3", "ml/many", "3")])
            with pytest.raises(BusError, match=r"within 2 s"):
                await bus.publish(out("4", message_id="4"), expect_last=last)
        finally:
            for broker in three.brokers:
                os.kill(broker.pid, signal.SIGCONT)
        await insist(lambda: bus.publish(out("4", message_id="4"), expect_last=last))
        await insist(lambda: bus.publish_many([out("3", "ml/many", "3")]))
        await bus.publish(out("5"))
        assert await until(bus, A, b"5") == [b"1", b"2", b"4", b"5"]
        await bus.publish(out("6", "ml/many"))
        # 3 may be there twice: the first was in the socket of a broker that hung.
        assert set(await until(bus, "ml/many", b"6")) == {b"3", b"6"}


async def until(bus: KafkaBus, key: str, last: bytes) -> list[bytes]:
    """What a key holds, up to a message."""
    reader = await bus.read(DECISIONS, key=key, after=0)
    found: list[bytes] = []
    while last not in found:
        came = await reader.next(timeout=30)
        assert came, found
        found += [m.data for m in came]
    await reader.close()
    return found


def place_of(bus: KafkaBus) -> int:
    """The partition of A."""
    from headrace.connectors.bus.kafka.names import partition_of

    return partition_of(A, 3)


async def insist(attempt: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await attempt()
                return
            except Fenced:
                raise
            except BusError:
                await asyncio.sleep(0.2)


async def test_the_broker_refuses_what_a_former_writer_sends_after_its_look(three: KafkaCluster) -> None:
    prefix = fresh_prefix()
    async with open_bus(three, prefix) as former, open_bus(three, prefix) as heir:
        first = await former.publish(out("1"), expect_last=0)
        [claim] = former._publisher._fence._claims.values()
        [place] = former._publisher._tails
        second = await heir.publish(out("2"), expect_last=first)
        late = Stored(-1, 0, A.encode(), b"late", [])
        with pytest.raises(errors.InvalidProducerEpoch):  # as a paused process does when it wakes up behind its look
            await append(former._cluster, place, claim.producer, late)
        with pytest.raises(Fenced):
            await former.publish(out("late"), expect_last=first)
        assert await heir.publish(out("3"), expect_last=second) > second
        reader = await heir.read(DECISIONS, key=A, after=0)
        assert [m.data for m in await reader.next(timeout=20)] == [b"1", b"2", b"3"]


async def test_a_lost_answer_is_no_second_message(three: KafkaCluster) -> None:
    async with open_bus(three, fresh_prefix()) as bus:
        first = await bus.publish(out("1", message_id="1"), expect_last=0)
        fence = bus._publisher._fence
        [claim] = fence._claims.values()
        [place] = bus._publisher._tails
        again = Stored(-1, 0, A.encode(), b"2", [("headrace-message-id", b"2")])
        offset = await append(bus._cluster, place, claim.producer, again)  # stored, and the answer is lost:
        assert await append(bus._cluster, place, claim.producer, again) == offset  # asked again under its number
        second = await bus.publish(out("2", message_id="2"), expect_last=first)  # and under its id
        assert second == offset * 3 + place.partition + 1
        third = await bus.publish(out("3", message_id="3"), expect_last=second)  # whose number is taken by then
        assert third > second
        reader = await bus.read(DECISIONS, key=A, after=0)
        assert [m.data for m in await reader.next(timeout=20)] == [b"1", b"2", b"3"]


async def test_a_writer_whose_number_is_taken_begins_anew(three: KafkaCluster) -> None:
    async with open_bus(three, fresh_prefix()) as bus:
        last = await bus.publish(out("1"), expect_last=0)
        fence = bus._publisher._fence
        for n in range(3):  # as after a try whose fate is not known
            [(name, claim)] = fence._claims.items()
            fence._claims[name] = replace(claim, producer=replace(claim.producer, sequence=n + 17))
            last = await bus.publish(out(f"{n + 2}"), expect_last=last)
        reader = await bus.read(DECISIONS, key=A, after=0)
        assert [m.data for m in await reader.next(timeout=20)] == [b"1", b"2", b"3", b"4"]


async def test_an_old_epoch_is_taken_anew_before_the_broker_can_forget_it(
    three: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bus(three, fresh_prefix()) as bus:
        last = await bus.publish(out("1"), expect_last=0)
        [before] = bus._publisher._fence._claims.values()
        last = await bus.publish(out("2"), expect_last=last)
        [same] = bus._publisher._fence._claims.values()
        assert same.producer == replace(before.producer, sequence=before.producer.sequence + 1)
        monkeypatch.setattr("headrace.connectors.bus.kafka.fence.RENEW_S", -1e9)
        with pytest.raises(BusError, match="in time"):  # older than that in every moment: it is taken again and again
            await replace_patience(bus, 1.0).publish(out("3"), expect_last=last)
        monkeypatch.undo()
        await bus.publish(out("4"), expect_last=last)
        [after] = bus._publisher._fence._claims.values()
        assert after.producer.epoch > before.producer.epoch


def replace_patience(bus: KafkaBus, patience_s: float) -> KafkaBus:
    bus._cluster.options = replace(bus._cluster.options, patience_s=patience_s)
    return bus


def test_a_cluster_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    with kafka_cluster(tmp_path, 1) as cluster:
        broker: Broker = cluster.brokers[0]
        pid = broker.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
