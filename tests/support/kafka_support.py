"""Kafka brokers for tests: real ones, started on free loopback ports and stopped by the test that started them."""

import asyncio
import base64
import contextlib
import ctypes
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest
from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.client import AIOKafkaClient

from headrace.connectors.bus.kafka import KafkaBus
from headrace.connectors.bus.kafka.log import END
from headrace.connectors.bus.kafka.requests import AlterTopics
from headrace.schemas.streams import Stream

TOOLS = Path(__file__).resolve().parents[2] / "tools/kafka"
CLUSTER_ID = "headrace-tests-cluster"  # 22 characters of base64, as Kafka wants it
START_S = 60.0  # on a busy machine; 5 s on an idle one
_JAVA = ("-Xms192m", "-Xmx320m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_PR_SET_PDEATHSIG = 1

_prefixes = count(1)


@functools.cache
def kafka_jars() -> Path:
    """Where Kafka's jars lie; fetched by the first test that asks. Skips where Java or Maven are missing."""
    missing = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: the tests on Kafka need Java 17 or newer, and Maven")
    found = subprocess.run([TOOLS / "fetch.sh"], capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(f"Kafka cannot be fetched: {found.stdout}{found.stderr}")
    return Path(found.stdout.strip().splitlines()[-1])


async def empty(bus: KafkaBus, stream: Stream) -> None:
    """Delete what a stream holds, by hand as an operator would."""
    topic = bus._names.topic(stream.name)
    ends: dict[TopicPartition, int] = {}
    for partition in range(await bus._topics.partitions(stream.name)):
        place = TopicPartition(topic, partition)
        ends[place] = await bus._offset(place, END)
    admin = AIOKafkaAdminClient(**bus._cluster.arguments)
    await admin.start()
    try:
        if stream.last_only:  # Kafka deletes by hand only where it deletes by itself too
            await bus._cluster.ask_any(AlterTopics({topic: {"cleanup.policy": "compact,delete"}}))
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(errors.PolicyViolationError):  # the change takes a moment
                    await admin.delete_records({p: RecordsToDelete(before_offset=end) for p, end in ends.items()})
                    break
                await asyncio.sleep(0.02)
        if stream.last_only:
            await bus._cluster.ask_any(AlterTopics({topic: {"cleanup.policy": "compact"}}))
    finally:
        await admin.close()


def fresh_prefix() -> str:
    """A bus prefix that no other test on the same broker has, also none that takes its prefix from `nats_support`."""
    return f"kafka{next(_prefixes)}"


class Broker:
    """One node, broker and controller, in a directory of its own. Its ports stay the same over restarts."""

    def __init__(self, directory: Path, node: int, ports: Mapping[str, int], settings: Mapping[str, object]) -> None:
        self.directory = directory
        self.node = node
        self.ports = ports  # by listener
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['PLAINTEXT']}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def format(self, *options: str) -> None:
        """Make its store; `options` are those of kafka-storage format."""
        command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties()), *options]
        done = subprocess.run(_java(*command), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def format_like(self, other: "Broker") -> None:
        """Make its store as that of another node of the cluster, which is done sooner than with a Java of its own."""
        self._properties()
        shutil.copytree(other.directory / "log", self.directory / "log")
        identity = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        meta = self.directory / "log/meta.properties"
        text = re.sub(r"node\.id=.*", f"node.id={self.node}", meta.read_text())
        meta.write_text(re.sub(r"directory\.id=.*", f"directory.id={identity}", text))

    def _properties(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        given = {"node.id": self.node, "log.dirs": self.directory / "log", **self.settings}
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return path

    def start(self) -> None:
        """Start it, from the main thread: it is killed when the thread that has started it ends."""
        with (self.directory / "out.log").open("ab") as out:
            self._process = subprocess.Popen(
                _java("kafka.Kafka", str(self.directory / "server.properties")),
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """The end of its log."""
        return (self.directory / "out.log").read_text(errors="replace")[-3000:]


class KafkaCluster:
    """Brokers that know each other."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.brokers = brokers

    @property
    def url(self) -> str:
        return "kafka://" + ",".join(broker.address for broker in self.brokers)

    def wait(self, nodes: int | None = None) -> None:
        """Until so many brokers, or all, are up."""
        wanted = len(self.brokers) if nodes is None else nodes
        with ThreadPoolExecutor(1) as pool:  # the caller may have a running event loop
            pool.submit(asyncio.run, self._ready(wanted)).result()

    async def _ready(self, nodes: int) -> None:
        give_up = time.monotonic() + START_S
        addresses = [broker.address for broker in self.brokers if broker.running()]
        while True:
            while not all(map(_listens, addresses)):
                self._check(give_up)
                await asyncio.sleep(0.05)
            client = AIOKafkaClient(bootstrap_servers=addresses, request_timeout_ms=2000)
            try:
                await client.bootstrap()
                if len(client.cluster.brokers()) >= nodes:
                    return
            except (errors.KafkaError, OSError, TimeoutError):
                pass
            finally:
                await client.close()
            self._check(give_up)
            await asyncio.sleep(0.05)

    def _check(self, give_up: float) -> None:
        for broker in self.brokers:
            assert broker._process is None or broker.running(), f"a broker has ended:\n{broker.said()}"
        assert time.monotonic() < give_up, f"the brokers do not come up:\n{self.brokers[0].said()}"


@contextmanager
def kafka_cluster(
    store: Path,
    size: int = 3,
    *,
    listeners: Mapping[str, str] = {},
    settings: Mapping[str, object] = {},
    format_options: tuple[str, ...] = (),
) -> Iterator[KafkaCluster]:
    """So many brokers for the length of a block.

    `listeners` are more ways in besides PLAINTEXT, name -> protocol; `settings` go over the defaults.
    """
    kafka_jars()
    protocols = {"PLAINTEXT": "PLAINTEXT", **listeners, "CONTROLLER": "PLAINTEXT"}
    free = iter(_free_ports(size * len(protocols)))
    ports = [{name: next(free) for name in protocols} for _ in range(size)]
    shared = {
        "controller.quorum.voters": ",".join(f"{i + 1}@127.0.0.1:{p['CONTROLLER']}" for i, p in enumerate(ports)),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
        **_settings(size),
    }
    brokers = [
        Broker(store / f"kafka{i + 1}", i + 1, p, {**shared, "listeners": _listeners(p), **settings})
        for i, p in enumerate(ports)
    ]
    brokers[0].format(*format_options)
    for broker in brokers[1:]:
        broker.format_like(brokers[0])
    with ExitStack() as stack:
        for broker in brokers:
            broker.start()
            stack.callback(broker.kill)
        cluster = KafkaCluster(brokers)
        cluster.wait()
        yield cluster


@contextmanager
def kafka_server(store: Path, **settings: object) -> Iterator[KafkaCluster]:
    """A single broker for the length of a block."""
    with kafka_cluster(store, 1, settings=settings) as cluster:
        yield cluster


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def _settings(size: int) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "default.replication.factor": size,
        "min.insync.replicas": min(2, size),
        "offsets.topic.replication.factor": size,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": size,
        "transaction.state.log.min.isr": min(2, size),
        "transaction.state.log.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
        "log.retention.check.interval.ms": 300,
        "log.cleaner.backoff.ms": 300,
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
        "log.index.size.max.bytes": 65536,  # so many topics
        "log.segment.delete.delay.ms": 500,
        "log.initial.task.delay.ms": 300,
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        "replica.lag.time.max.ms": 5000,
    }


def _java(*arguments: str) -> list[str]:
    """A Java command on Kafka's jars."""
    quiet = f"-Dlog4j2.configurationFile={TOOLS / 'log4j2.properties'}"
    return ["java", *_JAVA, quiet, "-cp", f"{kafka_jars()}/*", *arguments]


def _free_ports(wanted: int) -> list[int]:
    """Ports below those that the system gives to clients: a broker that was down must find its own free again."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 12_000):
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == wanted:
            return found
    raise RuntimeError("no free ports between 20000 and 32000")


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as knock:
        return knock.connect_ex((host, int(port))) == 0


def _end_with_parent() -> None:
    """In the child: be killed when the process that runs the tests is, so that no broker outlives it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)
