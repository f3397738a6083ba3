"""What the newest part of a partition holds: the newest record of each key, and which message ids are there.

Kafka neither finds the newest record of a key nor knows message ids. Whoever must know follows the partition: from two
minutes ago (how long an id counts), and on from there with each look; for a key that has been silent for longer it is
searched backwards, once.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass

from aiokafka import TopicPartition, errors

from headrace.connectors.bus.base import DUPLICATE_WINDOW_S
from headrace.connectors.bus.kafka.cluster import Cluster
from headrace.connectors.bus.kafka.log import END, FIRST, Headers, Stored, offset_at, read_between

MESSAGE_ID = "headrace-message-id"  # where the id is not the record's own
CE_ID = "ce_id"
_WINDOW_MS = int(DUPLICATE_WINDOW_S * 1000)
_FIRST_LOOK = 256  # offsets; each further look backwards is four times as wide


@dataclass(frozen=True, slots=True)
class Newest:
    """Where the newest record of a key is, and which message it holds."""

    offset: int
    message_id: str | None


def id_of(headers: Headers) -> str | None:
    """The message id of a stored record, if it has one."""
    found = dict(headers)
    raw = found.get(MESSAGE_ID, found.get(CE_ID))
    return None if raw is None else raw.decode(errors="replace")


class Tail:
    """One partition's. `lock` is held by whoever looks and then writes, so that this process does one at a time."""

    def __init__(self, cluster: Cluster, place: TopicPartition) -> None:
        self._cluster = cluster
        self._place = place
        self.lock = asyncio.Lock()
        self._start = 0
        self._end: int | None = None  # behind the last record that we know
        self._newest: dict[bytes, Newest | None] = {}
        self._ids: dict[str, int] = {}
        self._ages: deque[tuple[int, str]] = deque()

    async def refresh(self) -> None:
        """Read what has come since the last look. Raises BusError."""
        end = await self._offset_at(END)
        if self._end is None or end < self._end:  # the first look, or another topic of that name
            self._newest, self._ids, self._ages = {}, {}, deque()
            self._start = self._end = await self._offset_at(int(time.time() * 1000) - _WINDOW_MS)
        for record in await read_between(self._cluster, self._place, self._end, end):
            self._take(record)
        self._end = max(end, self._end)

    @property
    def end(self) -> int:
        """Behind the last offset that we know of."""
        return self._end or 0

    def holds(self, message_id: str) -> int | None:
        """The offset of a message that was stored lately."""
        return self._ids.get(message_id)

    async def newest(self, key: bytes) -> Newest | None:
        """The newest record of a key as of the last `refresh`. Raises BusError."""
        if key not in self._newest:
            record = await search_back(self._cluster, self._place, key, self._start)
            self._newest[key] = None if record is None else Newest(record.offset, id_of(record.headers))
        return self._newest[key]

    def stored(self, record: Stored) -> None:
        """We have stored this: where nobody else wrote meanwhile it need not be read."""
        if record.offset == self._end:
            self._take(record)
            self._end += 1

    def _take(self, record: Stored) -> None:
        message_id = id_of(record.headers)
        if record.key is not None:
            self._newest[record.key] = Newest(record.offset, message_id)
        if message_id is not None:
            self._ids.setdefault(message_id, record.offset)
            self._ages.append((record.time_ms, message_id))
        while self._ages and self._ages[0][0] < record.time_ms - _WINDOW_MS:
            self._ids.pop(self._ages.popleft()[1], None)

    async def _offset_at(self, when: int) -> int:
        place = self._place
        return await self._cluster.insist(
            f"offsets of {place.topic}-{place.partition}", lambda: offset_at(self._cluster, place, when)
        )


async def search_back(cluster: Cluster, place: TopicPartition, key: bytes, end: int) -> Stored | None:
    """The newest record of a key before an offset, or None. Reads in steps that widen. Raises BusError."""
    try:
        first = await cluster.insist(
            f"offsets of {place.topic}-{place.partition}", lambda: offset_at(cluster, place, FIRST)
        )
    except errors.OffsetOutOfRangeError:
        return None
    width = _FIRST_LOOK
    while end > first:
        start = max(first, end - width)
        mine = [record for record in await read_between(cluster, place, start, end) if record.key == key]
        if mine:
            return mine[-1]
        end, width = start, 4 * width
    return None
