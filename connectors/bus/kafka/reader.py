"""An ordered reader of a topic, or of one key of it: an aiokafka consumer without a group, and a watch over it."""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition, errors

from headrace.connectors.bus.base import Message, ReaderClosed
from headrace.connectors.bus.kafka.cluster import ANSWER_S, Cluster
from headrace.connectors.bus.kafka.log import END, Headers, offset_at
from headrace.connectors.bus.kafka.names import Names, key_bytes, offset_after, partition_of, position_of
from headrace.connectors.bus.kafka.tail import MESSAGE_ID
from headrace.connectors.bus.kafka.topics import Topics
from headrace.schemas.cloudevents import from_kafka
from headrace.schemas.errors import BusError
from headrace.schemas.streams import Stream

log = logging.getLogger(__name__)

_FETCH_BYTES = 4 * 1024 * 1024  # a partition, a request
_AT_ONCE = 5_000  # records
_LOOK_S = 5.0  # of silence; then it is looked whether something lies there that does not come
_RETRY_S = 0.2


class KafkaReader:
    """Reads all partitions of a stream, or those of some keys.

    Whole streams come in order within each partition, and by time between them.
    """

    def __init__(
        self, cluster: Cluster, topics: Topics, names: Names, stream: Stream, keys: Collection[str] = ()
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._stream = stream
        self._topic = names.topic(stream.name)
        self._keys = frozenset(keys)
        self._key_bytes = frozenset(map(key_bytes, keys))
        self._partitions = 0
        self._next: dict[TopicPartition, int] = {}  # the offset to read next
        self._until: dict[TopicPartition, int] = {}  # of a stream of last values: where it ended when we began
        self._held: dict[bytes | None, Message] = {}  # the last of each key up to there
        self._buffer: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._consumer: Any = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.on_close: Callable[[KafkaReader], None] = lambda _: None

    async def start(self, after: int | None) -> None:
        """Begin to read. Raises BusError when there is no such stream."""
        self._partitions = await self._topics.partitions(self._stream.name)
        which = sorted({partition_of(key, self._partitions) for key in self._keys}) or range(self._partitions)
        ends = await self._ends([TopicPartition(self._topic, number) for number in which])
        starts = {p: ends[p] if after is None else offset_after(after, p.partition, self._partitions) for p in ends}
        lost = all(starts[place] > end for place, end in ends.items())
        for place, end in ends.items():
            self._next[place] = 0 if lost else min(starts[place], end)
        if self._topics.last_only(self._stream):
            self._until = {place: end for place, end in ends.items() if self._next[place] < end}
        self._task = asyncio.create_task(self._read_for_ever(), name=f"read {self._topic}")
        self._task.add_done_callback(lambda _: self._arrived.set())

    async def next(self, timeout: float | None = None, limit: int = 1000) -> list[Message]:
        if self._closed:
            raise ReaderClosed(f"the reader of {self._stream.name} is closed: open another with Bus.read")
        if not self._buffer:
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                pass
            if self._task is not None and self._task.done() and not self._closed:
                raise BusError(f"the reader of {self._stream.name} has ended: {self._task!r}")
        found = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        if not self._buffer:
            self._arrived.clear()
            self._room.set()
        return found

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._buffer.clear()
        self._arrived.set()
        self.on_close(self)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ends(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        async def end(place: TopicPartition) -> tuple[TopicPartition, int]:
            what = f"offsets of {place.topic}-{place.partition}"
            return place, await self._cluster.insist(what, lambda: offset_at(self._cluster, place, END))

        return dict(await asyncio.gather(*map(end, places)))

    # -- one consumer after the other --------------------------------------------------------------------------------

    async def _read_for_ever(self) -> None:
        said = ""
        while True:
            try:
                await self._consume()
                said = ""
            except (errors.KafkaError, BusError, OSError, TimeoutError) as e:
                if said != repr(e):
                    said = repr(e)
                    log.warning("reading %s: %s; trying again", self._topic, said)
            await asyncio.sleep(_RETRY_S)

    async def _consume(self) -> None:
        """Read with one consumer until it stops giving what is there. Raises KafkaError."""
        consumer = AIOKafkaConsumer(
            **self._cluster.arguments,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # what retention has overtaken, and what was lost with its topic
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=500,
            request_timeout_ms=int(ANSWER_S * 1000),
            retry_backoff_ms=100,
            metadata_max_age_ms=30_000,
        )
        try:
            await consumer.start()
            consumer.assign(list(self._next))
            for place, offset in self._next.items():
                consumer.seek(place, offset)
            while await self._take(consumer):
                pass
        finally:
            await _stop(consumer)

    async def _take(self, consumer: Any) -> bool:
        """Put what comes into the buffer; False when something is there that does not come."""
        if self._buffer:
            self._room.clear()
            await self._room.wait()
        found = await consumer.getmany(timeout_ms=int(_LOOK_S * 1000), max_records=_AT_ONCE)
        for place, records in found.items():
            self._next[place] = records[-1].offset + 1
        for record in heapq.merge(*found.values(), key=_time):
            self._put(record)
        if self._until:
            await self._release(consumer)
        return bool(found) or not await self._stuck(consumer)

    def _put(self, record: Any) -> None:
        place = TopicPartition(record.topic, record.partition)
        if self._key_bytes and record.key not in self._key_bytes:
            return
        message = self._message(record)
        if record.offset < self._until.get(place, 0):
            self._held.pop(record.key, None)  # the last of a key comes where it was written
            self._held[record.key] = message
            return
        self._buffer.append(message)
        self._arrived.set()

    async def _release(self, consumer: Any) -> None:
        """A stream of last values: when all that lay there has been read, give out the last of each key."""
        for place, end in list(self._until.items()):
            if await consumer.position(place) >= end:
                del self._until[place]
        if not self._until:
            self._buffer.extendleft(reversed(self._held.values()))
            self._held = {}
            if self._buffer:
                self._arrived.set()

    async def _stuck(self, consumer: Any) -> bool:
        """After a silence: does something lie there? aiokafka does not come back from every outage."""
        places = list(self._next)
        before = {place: await consumer.position(place) for place in places}
        ends = await self._ends(places)
        if all(ends[place] <= before[place] for place in places):
            return any(ends[place] < before[place] for place in places)  # the topic was made anew
        await asyncio.sleep(2 * _RETRY_S)
        after = {place: await consumer.position(place) for place in places}
        return after == before and not self._buffer

    def _message(self, record: Any) -> Message:
        headers: Headers = [(name, value or b"") for name, value in record.headers if name != MESSAGE_ID]
        return Message(
            stream=self._stream.name,
            key=(record.key or b"").decode(errors="replace"),
            position=position_of(record.partition, record.offset, self._partitions),
            data=record.value or b"",
            headers=from_kafka(headers),
            stored_at=record.timestamp / 1000,
        )


def _time(record: Any) -> int:
    return int(record.timestamp)


async def _stop(consumer: Any) -> None:
    try:
        async with asyncio.timeout(2):
            await consumer.stop()
    except (errors.KafkaError, OSError, TimeoutError) as e:
        log.debug("closing a consumer: %s", e)
