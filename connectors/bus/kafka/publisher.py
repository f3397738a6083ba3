"""Publishing with acknowledgement from all in-sync replicas: one message, many, or one behind an expected one."""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition, errors

from headrace.connectors.bus.base import (
    DUPLICATE_WINDOW_S,
    MAX_MESSAGE_BYTES,
    Outgoing,
    TooLarge,
    check_headers,
    size_of,
    too_large,
)
from headrace.connectors.bus.kafka.cluster import Cluster
from headrace.connectors.bus.kafka.fence import Fence, NotTheLast
from headrace.connectors.bus.kafka.log import Headers, Stored
from headrace.connectors.bus.kafka.names import Names, key_bytes, partition_of, position_of
from headrace.connectors.bus.kafka.tail import CE_ID, MESSAGE_ID, Tail
from headrace.connectors.bus.kafka.topics import Topics
from headrace.schemas.cloudevents import to_kafka
from headrace.schemas.errors import BusError, Fenced

log = logging.getLogger(__name__)

_BATCH_BYTES = 256 * 1024
_CHUNK = 5_000  # messages of publish_many that wait for acknowledgement at once
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.RecordTooLargeError)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A message as it goes on the wire."""

    out: Outgoing
    place: TopicPartition
    key: bytes
    headers: Headers
    partitions: int

    def position(self, offset: int) -> int:
        return position_of(self.place.partition, offset, self.partitions)

    def as_stored(self, offset: int, time_ms: int) -> Stored:
        return Stored(offset, time_ms, self.key, self.out.data, self.headers)


@dataclass(slots=True)
class _Sent:
    """Message ids that this process has stored by `publish_many`, for as long as they count."""

    ids: set[tuple[str, str]] = field(default_factory=set)
    ages: deque[tuple[float, tuple[str, str]]] = field(default_factory=deque)

    def add(self, stream: str, message_id: str) -> None:
        now = time.monotonic()
        self.ids.add((stream, message_id))
        self.ages.append((now, (stream, message_id)))
        while self.ages[0][0] < now - DUPLICATE_WINDOW_S:
            self.ids.discard(self.ages.popleft()[1])


class Publisher:
    """Stores messages: an idempotent aiokafka producer for what anybody may write, the fence for what one may."""

    def __init__(self, cluster: Cluster, topics: Topics, names: Names) -> None:
        self._cluster = cluster
        self._topics = topics
        self._names = names
        self._fence = Fence(cluster)
        self._producer: Any = None
        self._starting = asyncio.Lock()
        self._tails: dict[TopicPartition, Tail] = {}
        self._doubted: set[TopicPartition] = set()  # what we sent there last may have been stored, or not
        self._sent = _Sent()
        self._ids = map(f"{token_hex(8)}-{{}}".format, itertools.count())

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await _dispose(producer)

    async def publish(self, out: Outgoing, expect_last: int | None) -> int:
        """Store one message; its position. Raises Fenced, TooLarge or BusError."""
        if expect_last is not None:
            return await self._publish_behind(out, expect_last)
        ready = await self._ready(out, out.message_id)
        if out.message_id is None:
            return ready.position((await self._store([ready]))[0])
        tail = self._tail(ready.place)
        async with tail.lock:
            await tail.refresh()
            offset = tail.holds(out.message_id)
            if offset is None:
                newest = await tail.newest(ready.key)
                if newest is not None and newest.message_id == out.message_id:
                    offset = newest.offset
            if offset is None:
                offset = (await self._store([ready]))[0]
                tail.stored(ready.as_stored(offset, int(time.time() * 1000)))
        return ready.position(offset)

    async def publish_many(self, batch: Sequence[Outgoing]) -> None:
        """Store messages in order. Raises TooLarge, before any is stored, or BusError."""
        ready = [await self._ready(out, out.message_id) for out in batch]
        for place in {message.place for message in ready} & self._doubted:
            await self._settle(place, ready)
        left = [m for m in ready if m.out.message_id is None or (m.out.stream, m.out.message_id) not in self._sent.ids]
        for start in range(0, len(left), _CHUNK):
            chunk = left[start : start + _CHUNK]
            await self._store(chunk)
            for message in chunk:
                if message.out.message_id is not None:
                    self._sent.add(message.out.stream, message.out.message_id)

    async def _publish_behind(self, out: Outgoing, expect_last: int) -> int:
        ready = await self._ready(out, out.message_id or next(self._ids))
        fence, tail = self._names.fence(out.stream, out.key), self._tail(ready.place)
        expected = None if expect_last == 0 else (expect_last - 1) // ready.partitions
        if expect_last and ready.position(expected or 0) != expect_last:
            expected = -1  # a position of another partition: none is there
        record = ready.as_stored(-1, int(time.time() * 1000))
        async with tail.lock:
            try:
                offset = await self._fence.append(fence, tail, ready.place, record, expected)
            except NotTheLast as e:
                newest = 0 if e.newest is None else ready.position(e.newest)
                raise Fenced(
                    f"{out.key} on {out.stream}: the newest message is at {newest}, not at {expect_last}; "
                    f"another has written"
                ) from e
            except errors.KafkaError as e:
                raise self._explain(out, e) from e
            tail.stored(ready.as_stored(offset, int(time.time() * 1000)))
        return ready.position(offset)

    async def _ready(self, out: Outgoing, message_id: str | None) -> _Ready:
        check_headers(out)
        if size_of(out) > MAX_MESSAGE_BYTES:
            raise too_large(out, MAX_MESSAGE_BYTES)
        key = key_bytes(out.key)
        partitions = await self._topics.partitions(out.stream)
        place = TopicPartition(self._names.topic(out.stream), partition_of(out.key, partitions))
        headers: Headers = to_kafka(out.headers)
        if message_id is not None and (CE_ID, message_id.encode()) not in headers:
            headers.append((MESSAGE_ID, message_id.encode()))
        return _Ready(out, place, key, headers, partitions)

    async def _store(self, batch: Sequence[_Ready]) -> list[int]:
        """Send and wait for all; their offsets."""
        try:
            async with asyncio.timeout(self._cluster.options.patience_s):
                producer = await self._started()
                waiting = [
                    await producer.send(
                        m.place.topic, m.out.data, key=m.key, partition=m.place.partition, headers=m.headers
                    )
                    for m in batch
                ]
                return [found.offset for found in await asyncio.gather(*waiting)]
        except (errors.KafkaError, OSError, TimeoutError) as e:
            self._doubted |= {message.place for message in batch}
            for message in batch:
                self._topics.forget(message.out.stream)
            await self.close()  # it would go on trying, after what is sent next
            raise self._explain(batch[0].out, e) from e

    async def _settle(self, place: TopicPartition, batch: Sequence[_Ready]) -> None:
        """Find out which of these messages a try that failed has stored after all."""
        tail = self._tail(place)
        async with tail.lock:
            await tail.refresh()
        for message in batch:
            message_id = message.out.message_id
            if message.place == place and message_id is not None and tail.holds(message_id) is not None:
                self._sent.add(message.out.stream, message_id)
        self._doubted.discard(place)

    def _tail(self, place: TopicPartition) -> Tail:
        return self._tails.setdefault(place, Tail(self._cluster, place))

    async def _started(self) -> Any:
        self._cluster.check_open()
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    **self._cluster.arguments,
                    acks="all",
                    enable_idempotence=True,
                    max_batch_size=_BATCH_BYTES,
                    max_request_size=MAX_MESSAGE_BYTES + 1024 * 1024,
                    request_timeout_ms=10_000,
                    retry_backoff_ms=50,
                )
                try:
                    await producer.start()
                except BaseException:
                    await _dispose(producer)
                    raise
                self._producer = producer
        return self._producer

    def _explain(self, out: Outgoing, e: Exception) -> BusError:
        if isinstance(e, _TOO_LARGE):
            return TooLarge(
                f"message of {size_of(out)} bytes for {out.key} on {out.stream}, or one with it, is above the topic's "
                f"limit: raise max.message.bytes of {self._names.topic(out.stream)}"
            )
        if isinstance(e, errors.TopicAuthorizationFailedError | errors.TransactionalIdAuthorizationFailed):
            return self._cluster.forbidden(f"writing {out.key} on {out.stream}", e)
        return BusError(
            f"{out.key} on {out.stream} could not be stored within {self._cluster.options.patience_s:g} s: {e!r}. It "
            f"may have been stored; publish it again with the same message id"
        )


async def _dispose(producer: Any) -> None:
    """End a producer without waiting for what it has not sent."""
    sender = producer._sender.sender_task  # its own stop() waits until all is sent, for ever when no broker is there
    if sender is not None:
        sender.cancel()
    try:
        async with asyncio.timeout(2):
            await producer.client.close()
    except (errors.KafkaError, OSError, TimeoutError) as e:
        log.debug("closing a producer: %s", e)
    producer._closed = True
