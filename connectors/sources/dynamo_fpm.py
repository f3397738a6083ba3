"""Source: FPMs from Dynamo's event plane on core NATS, packed into batches for the bus.

Core NATS delivers at most once: what is lost between an engine and this source stays lost, and is seen as a gap in its
publisher's sequence. `DYN_EVENT_PLANE=nats` must be set for all of Dynamo's workers; its default is ZMQ.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace.connectors.sources.fpm_packer import MANY_ITEMS, FpmPacker, Route
from headrace.connectors.sources.outbox import Outbox, PublishMany, pause
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import TOPIC

log = logging.getLogger(__name__)

FORGET_EVERY_S = 180.0
LETTERS_PER_FLUSH = 20  # more bad messages than that are counted only
LONGEST_WAIT_S = 5.0
PENDING_MESSAGES = 1_000_000
PENDING_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DynamoFpmOptions:
    """Where Dynamo's events are, and whose they are.

    `namespace` restricts the subscription to one of Dynamo's. A batch goes out after `flush_s` seconds or with
    `max_items` FPMs; up to `keep_items` wait while the bus is down. `connect` goes to nats-py as it is: credentials,
    TLS.
    """

    servers: tuple[str, ...]
    routes: tuple[Route, ...]
    name: str = "dynamo-fpm"
    namespace: str | None = None
    flush_s: float = 0.02
    max_items: int = MANY_ITEMS
    keep_items: int = 100_000
    connect: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError(
                f"source {self.name!r} has no NATS server: give the address that Dynamo's NATS_SERVER has"
            )
        if self.flush_s <= 0 or self.max_items < 1 or self.keep_items < self.max_items:
            raise ConfigError(
                f"source {self.name!r}: flush_s ({self.flush_s:g}) must be above 0, max_items ({self.max_items}) at "
                f"least 1 and keep_items ({self.keep_items}) at least max_items"
            )
        if self.namespace is not None and (not self.namespace or set(self.namespace) & set(".*> \t\r\n")):
            raise ConfigError(
                f"source {self.name!r}: {self.namespace!r} cannot be a Dynamo namespace in a NATS subject"
            )

    @property
    def subject(self) -> str:
        return f"namespace.{self.namespace or '*'}.component.*.endpoint.*.{TOPIC}"


class _Client(Client):
    """nats-py loses its connection over a header that it cannot read, and with it what comes until it is back."""

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (IndexError, ValueError):
            return None  # an FPM needs no headers


class DynamoFpmSource:
    """Run it with :meth:`run`; `packer.counters`, `outbox.counters` and `slow_consumer` tell how it fares."""

    def __init__(
        self, options: DynamoFpmOptions, publish_many: PublishMany, clock: Callable[[], float] = time.time
    ) -> None:
        self.options = options
        self.packer = FpmPacker(options.routes, source=options.name, max_items=options.max_items)
        self.outbox = Outbox(publish_many, limit=options.keep_items, name=options.name)
        self.slow_consumer = 0  # messages that nats-py dropped because we were too slow
        self.connected = asyncio.Event()
        self._clock = clock
        self._letters: list[DeadLetter] = []
        self._said: set[tuple[str, str]] = set()
        self._last_error = "no answer"

    async def run(self, stop: asyncio.Event) -> None:
        """Receive and publish until `stop`; reconnects for ever. What was received is published before it returns."""
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.outbox.run(done))
            flushing = tasks.create_task(self._flush_often(stop))
            await self._receive(stop)
            await flushing
            self.flush()
            done.set()

    def flush(self) -> None:
        """Hand over what has come so far."""
        for batch in self.packer.take():
            self.outbox.put(batch, weight=len(batch.items))
        letters, self._letters = self._letters, []
        for letter in letters:
            self.outbox.put(letter)

    async def _flush_often(self, stop: asyncio.Event) -> None:
        forget_at = time.monotonic() + FORGET_EVERY_S
        while not await pause(stop, self.options.flush_s):
            self.flush()
            if len(self.packer.names_seen) > len(self._said):
                self._say_unmapped()
            if time.monotonic() >= forget_at:
                self.packer.forget()
                forget_at = time.monotonic() + FORGET_EVERY_S

    async def _receive(self, stop: asyncio.Event) -> None:
        wait_s = 0.1
        while not stop.is_set():
            lost = asyncio.Event()
            client = _Client()
            try:
                await self._connect(client, lost)
            except (errors.Error, OSError, TimeoutError) as e:
                log.warning(
                    "%s: no connection to Dynamo's NATS at %s (%s): is it running, and is the address its NATS_SERVER?",
                    self.options.name,
                    _shown(self.options.servers),
                    str(e) or self._last_error,
                )
                await _close(client)
                await pause(stop, wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            wait_s = 0.1
            self.connected.set()
            await _first_of(stop, lost)
            self.connected.clear()
            await _close(client)
            if not stop.is_set():
                log.warning("%s: lost Dynamo's NATS (%s), connecting anew", self.options.name, self._last_error)

    async def _connect(self, client: Client, lost: asyncio.Event) -> None:
        async def failed(error: Exception) -> None:
            if isinstance(error, errors.SlowConsumerError):
                self.slow_consumer += 1
                return
            said, self._last_error = self._last_error, str(error) or type(error).__name__
            if client.is_connected and said != self._last_error:
                log.warning("%s: from the NATS client: %s", self.options.name, self._last_error)

        async def closed() -> None:
            lost.set()

        await client.connect(
            servers=list(self.options.servers),
            name=f"headrace {self.options.name}",
            error_cb=failed,
            closed_cb=closed,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=5,
            ping_interval=5,
            **self.options.connect,
        )
        await client.subscribe(
            self.options.subject,
            cb=self._on_message,
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )
        await client.flush(timeout=5)

    async def _on_message(self, message: Msg) -> None:
        letter = self.packer.add(message.subject, message.data, self._clock())
        if letter is not None and len(self._letters) < LETTERS_PER_FLUSH:
            self._letters.append(letter)
        if self.packer.ready:
            self.flush()

    def _say_unmapped(self) -> None:
        """Say once for each name that its FPMs go nowhere, with the names that would go somewhere (dynamo#3106)."""
        new = [name for name in self.packer.names_seen if name not in self._said]
        self._said.update(new)
        log.warning(
            "%s: FPMs of %s belong to no DGD and are counted only; mapped are %s. Add a route, or correct its names",
            self.options.name,
            _names(new),
            _names(self.packer.known_names),
        )


def _names(pairs: list[tuple[str, str]]) -> str:
    return ", ".join(f"namespace {namespace!r} component {component!r}" for namespace, component in pairs[:20])


def _shown(servers: tuple[str, ...]) -> str:
    """Addresses without user and password."""
    parts = (urlsplit(server if "://" in server else f"nats://{server}") for server in servers)
    return ", ".join(f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts)


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def _close(client: Client) -> None:
    try:
        async with asyncio.timeout(2):
            await client.close()
    except (errors.Error, OSError, TimeoutError) as e:
        log.debug("closing a broken NATS connection: %s", e)
