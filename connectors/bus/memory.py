"""The bus inside one process: what tests, replay and the one-process simulator run on."""

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from headrace.connectors.bus.base import (
    DUPLICATE_WINDOW_S,
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
from headrace.schemas.errors import BusError, Fenced
from headrace.schemas.streams import Stream

Clock = Callable[[], float]


class MemoryBroker:
    """The streams that the buses of one process share. Deterministic: positions count from 1, time is the clock's.

    `clock` gives seconds and decides `stored_at`, age limits and the duplicate window. While `available` is false
    every operation raises BusError and readers get nothing, as when a broker is down; nothing stored is lost.
    """

    def __init__(self, clock: Clock = time.time, *, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.clock = clock
        self.max_message_bytes = max_message_bytes
        self._available = True
        self._logs: dict[str, _Log] = {}

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
            self._logs[stream.name] = _Log(stream, self)

    def log(self, name: str) -> "_Log":
        """The stream's log. Raises BusError when the broker is down or has no such stream."""
        if not self._available:
            raise BusError("the in-memory broker is switched off: set MemoryBroker.available to True")
        if name not in self._logs:
            raise BusError(f"stream {name} does not exist on the in-memory broker: call ensure first")
        return self._logs[name]


class _Log:
    """The messages of one stream, oldest first; `_head` is where the kept ones begin."""

    def __init__(self, stream: Stream, broker: MemoryBroker) -> None:
        self.stream = stream
        self._broker = broker
        self._messages: list[Message] = []
        self._head = 0
        self._size = 0
        self._last_position = 0
        self._last: dict[str, Message] = {}
        self._ids: dict[str, int] = {}
        self._id_ages: deque[tuple[float, str]] = deque()
        self._newest_id: dict[str, str | None] = {}
        self._waiting: set[asyncio.Event] = set()

    @property
    def next_position(self) -> int:
        return self._last_position + 1

    def limit(self, stream: Stream) -> None:
        self.stream = stream
        if stream.last_only:
            self._messages = sorted(self._last.values(), key=_position)
            self._head = 0
            self._size = sum(map(_size, self._messages))
        self._trim()

    def append(self, out: Outgoing, expect_last: int | None) -> int:
        now = self._broker.clock()
        stored = self._stored(out, now)
        if stored is not None:
            return stored
        last = self.last(out.key)
        newest = last.position if last else 0
        if expect_last is not None and newest != expect_last:
            raise Fenced(
                f"{out.key} on {out.stream}: the newest message is at {newest}, not at {expect_last}; "
                f"another has written"
            )
        message = Message(out.stream, out.key, self.next_position, bytes(out.data), dict(out.headers), now)
        self._last_position = message.position
        if self.stream.last_only and last:
            self._remove(last)
        self._messages.append(message)
        self._size += _size(message)
        self._last[out.key] = message
        self._newest_id[out.key] = out.message_id
        if out.message_id:
            self._ids[out.message_id] = message.position
            self._id_ages.append((now, out.message_id))
        self._trim()
        self.wake()
        return message.position

    def after(self, position: int, limit: int, key: str | None) -> list[Message]:
        """Up to `limit` kept messages behind a position."""
        self._trim()
        found: list[Message] = []
        for i in range(bisect_right(self._messages, position, lo=self._head, key=_position), len(self._messages)):
            if key is None or self._messages[i].key == key:
                found.append(self._messages[i])
                if len(found) == limit:
                    break
        return found

    def last(self, key: str) -> Message | None:
        self._trim()
        return self._last.get(key)

    def info(self) -> StreamInfo:
        self._trim()
        kept = len(self._messages) - self._head
        first = self._messages[self._head].position if kept else self.next_position
        return StreamInfo(self.stream.name, kept, self._size, first, self._last_position, len(self._last))

    def watch(self, event: asyncio.Event) -> None:
        self._waiting.add(event)

    def unwatch(self, event: asyncio.Event) -> None:
        self._waiting.discard(event)

    def wake(self) -> None:
        for event in self._waiting:
            event.set()

    def _stored(self, out: Outgoing, now: float) -> int | None:
        while self._id_ages and self._id_ages[0][0] <= now - DUPLICATE_WINDOW_S:
            self._ids.pop(self._id_ages.popleft()[1], None)
        if out.message_id is None:
            return None
        last = self._last.get(out.key)
        if last and self._newest_id.get(out.key) == out.message_id:
            return last.position
        return self._ids.get(out.message_id)

    def _remove(self, message: Message) -> None:
        at = bisect_right(self._messages, message.position, lo=self._head, key=_position) - 1
        del self._messages[at]
        self._size -= _size(message)

    def _trim(self) -> None:
        if self.stream.last_only:
            return
        oldest = None if self.stream.keep_s is None else self._broker.clock() - self.stream.keep_s
        while self._head < len(self._messages):
            message = self._messages[self._head]
            expired = oldest is not None and message.stored_at <= oldest
            if not expired and self._size <= self.stream.keep_bytes:
                break
            self._head += 1
            self._size -= _size(message)
            if self._last.get(message.key) is message:
                del self._last[message.key]
        if self._head > 1000 and self._head * 2 > len(self._messages):
            del self._messages[: self._head]
            self._head = 0


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
        self._check()
        log = self.broker.log(stream.name)
        if key is not None:
            split_key(key)
        end = log.next_position - 1
        if after is None:
            after = end
        elif after > end:  # a position of a log that is gone
            after = 0
        reader = MemoryReader(self.broker, log, key, after)
        self._readers.add(reader)
        reader.on_close = self._readers.discard
        return reader

    async def last(self, stream: Stream, key: str) -> Message | None:
        self._check()
        split_key(key)
        return self.broker.log(stream.name).last(key)

    async def info(self, stream: Stream) -> StreamInfo:
        self._check()
        return self.broker.log(stream.name).info()

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

    def __init__(self, broker: MemoryBroker, log: _Log, key: str | None, after: int) -> None:
        self._broker = broker
        self._log = log
        self._key = key
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
        found = self._log.after(self._position, limit, self._key)
        if len(found) == limit:
            self._position = found[-1].position
        else:  # all of it was looked at, other keys too
            self._position = max(self._position, self._log.next_position - 1)
        return found


def _position(message: Message) -> int:
    return message.position


def _size(message: Message) -> int:
    return len(message.key) + len(message.data) + sum(len(k) + len(v) for k, v in message.headers.items())
