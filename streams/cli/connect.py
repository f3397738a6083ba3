"""The bus of a command, from the settings; and a command's event loop, which SIGINT and SIGTERM end in peace.

`url: embedded` is a nats-server of our own. `headrace run` and `headrace demo` start it (`serve=True`); other commands
find the running one by its store directory, where it leaves its port.
"""

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from headrace.schemas.errors import BusError, ConfigError
from headrace.schemas.streams import Stream
from headrace.streams.settings import BusSettings, Settings

if TYPE_CHECKING:  # what a bus needs is imported when one is opened
    from headrace.connectors.bus.base import Bus
    from headrace.connectors.bus.kafka import KafkaOptions
    from headrace.connectors.bus.nats import NatsOptions
    from headrace.connectors.bus.records import RecordBus

T = TypeVar("T")

EMBEDDED = "embedded"
PATIENCE_S = 30.0  # of a process that stays
SHORT_PATIENCE_S = 5.0  # of a command that somebody waits for
_KNOCK_S = 1.0


@dataclass(frozen=True, slots=True)
class Client:
    """Who we are on the bus. `serve`: start the embedded server where the settings ask for it."""

    name: str = "headrace"
    serve: bool = False
    patience_s: float = PATIENCE_S
    clock: Callable[[], float] = time.time


@asynccontextmanager
async def open_bus(settings: Settings, client: Client = Client()) -> AsyncIterator["RecordBus"]:
    """The bus of the settings, open for the length of a block.

    Raises ConfigError for settings that name no bus, BusError when it cannot be reached; both say what to do.
    """
    from headrace.connectors.bus.records import RecordBus

    async with _server(settings.edges.bus, client.serve) as url, _bus(settings.edges.bus, url, client) as bus:
        yield RecordBus(bus, client.name, client.clock)


@asynccontextmanager
async def _bus(bus: BusSettings, url: str, client: Client) -> AsyncIterator["Bus"]:
    """The bus at a URL, with the identity that the settings give us there."""
    from headrace.connectors.bus import factory
    from headrace.connectors.bus.nats import NatsBus

    if is_kafka(url):
        kafka = factory.kafka_bus(kafka_options(bus, url, client), bus.prefix)
        try:
            await kafka.open()
            yield kafka
        finally:
            await kafka.close()
        return
    if not is_nats(url):
        async with factory.open_bus(url, bus.prefix) as other:
            yield other
        return
    nats = NatsBus(nats_options(bus, url, client), bus.prefix)
    try:
        await nats.open()
        yield nats
    finally:
        await nats.close()


async def make_sure(bus: "Bus", streams: Iterable[Stream]) -> None:
    """Create those of the streams that are not there yet; a planner that comes later finds them as it would make them.

    What exists is left alone, so that reading needs no right to create. Raises BusError.
    """
    for stream in streams:
        try:
            await bus.info(stream)
        except BusError:
            if not bus.connected:
                raise
            await bus.ensure([stream])


def is_nats(url: str) -> bool:
    """The address of a NATS server?"""
    return url.partition(":")[0] in ("nats", "tls")


def nats_options(bus: BusSettings, url: str, client: Client) -> "NatsOptions":
    """What the URL says, and the identity of the settings on top. Raises ConfigError."""
    from headrace.connectors.bus.nats import NatsOptions

    _refuse(bus, ("sasl", "partitions"), "of Kafka: remove it, or give a kafka:// URL")
    given = {"credentials": _path(bus.credentials), "nkey_seed": _path(bus.nkey_seed), "token": bus.token}
    return replace(NatsOptions.from_url(url), **_over(bus, url, client, given))


def is_kafka(url: str) -> bool:
    """The address of Kafka brokers?"""
    return url.partition(":")[0] == "kafka"


def kafka_options(bus: BusSettings, url: str, client: Client) -> "KafkaOptions":
    """What the URL says, and the identity of the settings on top. Raises ConfigError."""
    from headrace.connectors.bus import factory

    factory.need_kafka()
    from headrace.connectors.bus.kafka import KafkaOptions

    _refuse(bus, ("credentials", "nkey_seed", "token"), "of NATS: on Kafka give bus.user, bus.password and bus.sasl")
    given = {"sasl": bus.sasl, "partitions": bus.partitions}
    return KafkaOptions.from_url(url, **_over(bus, url, client, given))


def _over(bus: BusSettings, url: str, client: Client, given: dict[str, Any]) -> dict[str, Any]:
    """The options that win over the URL's: `given`, what any broker may be told, and who we are if it does not say."""
    given |= {
        "user": bus.user,
        "password": bus.password,
        "ca": _path(bus.tls_ca),
        "cert": _path(bus.tls_cert),
        "cert_key": _path(bus.tls_key),
        "tls": bus.tls,
        "replicas": bus.replicas,
    }
    ours = {name: value for name, value in given.items() if value is not None}
    said = dict(parse_qsl(urlsplit(url).query))
    return ours | {name: getattr(client, name) for name in ("name", "patience_s") if name not in said}


def _refuse(bus: BusSettings, names: Iterable[str], why: str) -> None:
    for name in names:
        if getattr(bus, name) is not None:
            raise ConfigError(f"bus.{name} is {why}")


def store_of(bus: BusSettings) -> Path | None:
    """The store directory of the embedded server, or None where the settings name another bus."""
    kind, colon, directory = bus.url.partition(":")
    if kind != EMBEDDED:
        return None
    return Path(directory if colon and directory else bus.store)


def running_server(store: Path) -> str | None:
    """The URL of the embedded server that runs on a store directory, or None. It leaves `ports/*_<pid>.ports` there."""
    for path in sorted((store / "ports").glob("*.ports")):
        try:
            pid = int(path.stem.rpartition("_")[2])
            url = str(json.loads(path.read_text(encoding="utf-8"))["nats"][0])
            port = int(url.rpartition(":")[2])
        except (OSError, ValueError, LookupError, TypeError):  # half written, or of a server that has just ended
            continue
        if _alive(pid) and _listens(port):
            return f"nats://127.0.0.1:{port}"
    return None


@asynccontextmanager
async def _server(bus: BusSettings, serve: bool) -> AsyncIterator[str]:
    """The URL of the server: the given one, the embedded one that runs, or one that we start and stop."""
    store = store_of(bus)
    if store is None:
        yield bus.url
        return
    url = running_server(store)
    if url is not None and not serve:
        yield url
        return
    if not serve:
        raise BusError(
            f"no server runs on {store}: start `headrace run` or `headrace demo` in this directory first, or name a "
            f"bus with --bus nats://HOST:PORT"
        )
    if url is not None:
        raise BusError(f"a server runs on {store} already, at {url}: use it with --bus {url}, or set another bus.store")
    from headrace.connectors.bus.embedded import EmbeddedNats

    async with EmbeddedNats(store, port=bus.port) as server:
        yield server.url


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_KNOCK_S):
            return True
    except OSError:
        return False


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text).expanduser()


def run_until_stopped(main: Callable[[asyncio.Event], Awaitable[T]]) -> T:
    """Run a command to its end. The first SIGINT or SIGTERM sets its stop event; a second SIGINT interrupts it."""

    async def with_signals() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()

        def stopped() -> None:
            stop.set()
            for number in signals:
                loop.remove_signal_handler(number)

        for number in signals:
            loop.add_signal_handler(number, stopped)
        return await main(stop)

    return asyncio.run(with_signals())
