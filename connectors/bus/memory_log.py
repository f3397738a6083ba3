"""One stream of the in-memory bus: its messages, what is kept of them, and which ids it remembers."""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection

from headrace.connectors.bus.base import DUPLICATE_WINDOW_S, Message, Outgoing, StreamInfo
from headrace.schemas.errors import Fenced
from headrace.schemas.streams import Stream

Clock = Callable[[], float]


class MemoryLog:
    """The messages of one stream, oldest first; `_head` is where the kept ones begin."""

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self.stream = stream
        self._clock = clock
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
        now = self._clock()
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

    def after(self, position: int, limit: int, keys: Collection[str] | None) -> list[Message]:
        """Up to `limit` kept messages behind a position, of some keys or of all."""
        self._trim()
        found: list[Message] = []
        for i in range(bisect_right(self._messages, position, lo=self._head, key=_position), len(self._messages)):
            if keys is None or self._messages[i].key in keys:
                found.append(self._messages[i])
                if len(found) == limit:
                    break
        return found

    def last(self, key: str) -> Message | None:
        self._trim()
        return self._last.get(key)

    def keys(self) -> set[str]:
        self._trim()
        return set(self._last)

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
        oldest = None if self.stream.keep_s is None else self._clock() - self.stream.keep_s
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


def _position(message: Message) -> int:
    return message.position


def _size(message: Message) -> int:
    return len(message.key) + len(message.data) + sum(len(k) + len(v) for k, v in message.headers.items())
