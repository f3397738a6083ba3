"""The bus inside one process: what tests, replay and the one-process simulator run on."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from headrace.connectors.bus.base import (
    MAX_MESSAGE_BYTES,
    Message,
    Outgoing,
    Reader,
    ReaderClosed,
    StreamInfo,
    check_headers,
    size_of,
    split_key,
    too_large,
)
from headrace.connectors.bus.memory_log import Clock, MemoryLog
from headrace.schemas.errors import BusError
from headrace.schemas.streams import Stream


class MemoryBroker:
    """The streams that the buses of one process share. Deterministic: positions count from 1, time is the clock's.

    `clock` gives seconds and decides `stored_at`, age limits and the duplicate window. While `available` is false
    every operation raises BusError and readers get nothing, as when a broker is down; nothing stored is lost.
    """

    def __init__(self, clock: Clock = time.time, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.clock = clock
        self.max_message_bytes = max_message_bytes
        self._available = True
        self._logs: dict[str, MemoryLog] = {}

    @property
    def available(self) -> bool:
        return self._available

    @available.setter
    def available(self, value: bool) -> None:
        self._available = value
        for log in self._logs.values():
            log.wake()

    def ensure(self, stream: Stream) -> None:
        """Create a stream, or give it these limits."""
        if stream.name in self._logs:
            self._logs[stream.name].limit(stream)
        else:
            self._logs[stream.name] = MemoryLog(stream, lambda: self.clock())

    def log(self, name: str) -> MemoryLog:
        """The stream's log. Raises BusError when the broker is down or has no such stream."""
        if not self._available:
            raise BusError("the in-memory broker is switched off: set MemoryBroker.available to True")
        if name not in self._logs:
            raise BusError(f"stream {name} does not exist on the in-memory broker: call ensure first")
        return self._logs[name]


class MemoryBus:
    """A bus on a MemoryBroker; one of its own where none is given."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self._open = False
        self._readers: set[MemoryReader] = set()

    async def open(self) -> None:
        if not self.broker.available:
            raise BusError("the in-memory broker is switched off: set MemoryBroker.available to True")
        self._open = True

    async def close(self) -> None:
        self._open = False
        for reader in list(self._readers):
            await reader.close()

    async def ensure(self, streams: Iterable[Stream]) -> None:
        self._check()
        for stream in streams:
            self.broker.ensure(stream)

    async def publish(self, out: Outgoing, *, expect_last: int | None = None) -> int:
        self._check(out)
        position = self.broker.log(out.stream).append(out, expect_last)
        await asyncio.sleep(0)  # as on a real bus, readers get their turn
        return position

    async def publish_many(self, batch: Sequence[Outgoing]) -> None:
        self._check(*batch)
        for out in batch:
            self.broker.log(out.stream).append(out, None)
        await asyncio.sleep(0)

    async def read(self, stream: Stream, *, key: str | None = None, after: int | None = None) -> Reader:
        return self._read(stream, None if key is None else (key,), after)

    async def read_keys(self, stream: Stream, keys: Collection[str], after: int) -> Reader:
        if not keys:
            raise BusError(f"keys of {stream.name} to read: at least one is needed")
        return self._read(stream, keys, after)

    def _read(self, stream: Stream, keys: Collection[str] | None, after: int | None) -> Reader:
        self._check()
        log = self.broker.log(stream.name)
        for key in keys or ():
            split_key(key)
        end = log.next_position - 1
        if after is None:
            after = end
        elif after > end:  # a position of a log that is gone
            after = 0
        reader = MemoryReader(self.broker, log, keys, after)
        self._readers.add(reader)
        reader.on_close = self._readers.discard
        return reader

    async def last(self, stream: Stream, key: str) -> Message | None:
        self._check()
        split_key(key)
        return self.broker.log(stream.name).last(key)

    async def keys(self, stream: Stream) -> set[str]:
        self._check()
        return self.broker.log(stream.name).keys()

    async def info(self, stream: Stream) -> StreamInfo:
        self._check()
        return self.broker.log(stream.name).info()

    @property
    def one_order(self) -> bool:
        return True

    @property
    def connected(self) -> bool:
        return self._open and self.broker.available

    def _check(self, *batch: Outgoing) -> None:
        if not self._open:
            raise BusError("the bus is not open: await open() first")
        for out in batch:
            split_key(out.key)
            check_headers(out)
            if size_of(out) > self.broker.max_message_bytes:
                raise too_large(out, self.broker.max_message_bytes)
            self.broker.log(out.stream)


class MemoryReader:
    """Reads the broker's log itself, so nothing is buffered and a slow reader costs nothing."""

    def __init__(self, broker: MemoryBroker, log: MemoryLog, keys: Collection[str] | None, after: int) -> None:
        self._broker = broker
        self._log = log
        self._keys = None if keys is None else frozenset(keys)
        self._position = after
        self._closed = False
        self._arrived = asyncio.Event()
        self.on_close: Callable[[MemoryReader], None] = lambda _: None
        log.watch(self._arrived)

    async def next(self, timeout: float | None = None, limit: int = 1000) -> list[Message]:
        if self._closed:
            raise ReaderClosed(f"the reader of {self._log.stream.name} is closed: open another with Bus.read")
        try:
            async with asyncio.timeout(timeout):
                while not (found := self._take(limit)) and not self._closed:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            found = self._take(limit)
        return found

    async def close(self) -> None:
        self._closed = True
        self._log.unwatch(self._arrived)
        self._arrived.set()
        self.on_close(self)

    def _take(self, limit: int) -> list[Message]:
        if self._closed or not self._broker.available:
            return []
        found = self._log.after(self._position, limit, self._keys)
        if len(found) == limit:
            self._position = found[-1].position
        else:  # all of it was looked at, other keys too
            self._position = max(self._position, self._log.next_position - 1)
        return found
