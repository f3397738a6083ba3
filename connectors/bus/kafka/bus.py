"""The bus on Kafka: connection, topics, publisher and readers put together."""

import asyncio
from collections.abc import Collection, Iterable, Sequence

from aiokafka import TopicPartition, errors

from headrace.connectors.bus.base import Message, Outgoing, Reader, StreamInfo
from headrace.connectors.bus.kafka.cluster import Cluster
from headrace.connectors.bus.kafka.log import END, FIRST, Headers, offset_at
from headrace.connectors.bus.kafka.names import Names, key_bytes, partition_of, position_of
from headrace.connectors.bus.kafka.options import KafkaOptions
from headrace.connectors.bus.kafka.publisher import Publisher
from headrace.connectors.bus.kafka.reader import KafkaReader
from headrace.connectors.bus.kafka.requests import LogSizes, size_in
from headrace.connectors.bus.kafka.tail import MESSAGE_ID, search_back
from headrace.connectors.bus.kafka.topics import Topics
from headrace.schemas.cloudevents import from_kafka
from headrace.schemas.errors import BusError
from headrace.schemas.streams import Stream

LOOK_S = 2.0  # of silence, with messages that do not come


class KafkaBus:
    """A bus on the Kafka cluster at a URL, or as the options say. `prefix` begins every topic."""

    def __init__(self, where: str | KafkaOptions, prefix: str = "headrace") -> None:
        self.options = KafkaOptions.from_url(where) if isinstance(where, str) else where
        self._names = Names(prefix)
        self._cluster = Cluster(self.options)
        self._topics = Topics(self._cluster, self._names)
        self._publisher = Publisher(self._cluster, self._topics, self._names)
        self._readers: set[KafkaReader] = set()
        self._looking = asyncio.Lock()
        self._keys_readers: dict[str, Reader] = {}
        self._keys: dict[str, set[str]] = {}
        self._seen: dict[tuple[str, int], int] = {}  # (stream, partition) -> position up to which keys are known

    async def open(self) -> None:
        await self._cluster.open()

    async def close(self) -> None:
        await asyncio.gather(*(reader.close() for reader in list(self._readers)))
        await self._publisher.close()
        await self._cluster.close()

    async def ensure(self, streams: Iterable[Stream]) -> None:
        await self._topics.ensure(streams)

    async def publish(self, out: Outgoing, *, expect_last: int | None = None) -> int:
        return await self._publisher.publish(out, expect_last)

    async def publish_many(self, batch: Sequence[Outgoing]) -> None:
        await self._publisher.publish_many(batch)

    async def read(self, stream: Stream, *, key: str | None = None, after: int | None = None) -> Reader:
        return await self._read(stream, () if key is None else (key,), after)

    async def read_keys(self, stream: Stream, keys: Collection[str], after: int) -> Reader:
        if not keys:
            raise BusError(f"keys of {stream.name} to read: at least one is needed")
        return await self._read(stream, keys, after)

    async def _read(self, stream: Stream, keys: Collection[str], after: int | None) -> Reader:
        reader = KafkaReader(self._cluster, self._topics, self._names, stream, keys)
        await reader.start(after)
        self._readers.add(reader)
        reader.on_close = self._readers.discard
        return reader

    async def last(self, stream: Stream, key: str) -> Message | None:
        wanted = key_bytes(key)
        partitions = await self._topics.partitions(stream.name)
        place = TopicPartition(self._names.topic(stream.name), partition_of(key, partitions))
        record = await search_back(self._cluster, place, wanted, await self._offset(place, END))
        if record is None:
            return None
        headers: Headers = [(name, value) for name, value in record.headers if name != MESSAGE_ID]
        position = position_of(place.partition, record.offset, partitions)
        return Message(stream.name, key, position, record.data, from_kafka(headers), record.time_ms / 1000)

    async def keys(self, stream: Stream) -> set[str]:
        """Kafka has no list of them: the topic is read, the first time from its beginning, later what is new."""
        async with self._looking:
            reader = self._keys_readers.get(stream.name)
            if reader is None:
                reader = self._keys_readers[stream.name] = await self.read(stream, after=0)
                self._keys[stream.name] = set()
            found, newest = self._keys[stream.name], await self._ends(stream)
            while any(end > self._seen.get(place, 0) for place, end in newest.items()):
                messages = await reader.next(timeout=LOOK_S)
                found.update(m.key for m in messages)
                for m in messages:
                    place = (stream.name, (m.position - 1) % len(newest))
                    self._seen[place] = m.position
                if not messages:
                    break  # the rest was compacted away, or are marks of the broker
            return set(found)

    async def _ends(self, stream: Stream) -> dict[tuple[str, int], int]:
        """The last position in each partition of a stream."""
        partitions = await self._topics.partitions(stream.name)
        topic = self._names.topic(stream.name)
        ends = await asyncio.gather(*(self._offset(TopicPartition(topic, n), END) for n in range(partitions)))
        return {(stream.name, n): position_of(n, end - 1, partitions) for n, end in enumerate(ends) if end > 0}

    async def info(self, stream: Stream) -> StreamInfo:
        partitions = await self._topics.partitions(stream.name)
        topic = self._names.topic(stream.name)
        found = await asyncio.gather(*(self._partition(TopicPartition(topic, n)) for n in range(partitions)))
        kept = [(number, first, end) for number, (first, end, _) in enumerate(found) if end > first]
        ended = [(number, end) for number, (_, end, _) in enumerate(found) if end > 0]
        last = max((position_of(number, end - 1, partitions) for number, end in ended), default=0)
        return StreamInfo(
            name=stream.name,
            messages=sum(end - first for first, end, _ in found),
            size_bytes=sum(size for _, _, size in found),
            first_position=min((position_of(n, first, partitions) for n, first, _ in kept), default=last + 1),
            last_position=last,
        )

    @property
    def one_order(self) -> bool:
        return False  # within a partition only

    @property
    def connected(self) -> bool:
        return self._cluster.connected

    async def _partition(self, place: TopicPartition) -> tuple[int, int, int]:
        """First offset, end and bytes of a partition."""

        async def size() -> int:
            answer = await self._cluster.ask_leader(place, LogSizes(place.topic, [place.partition]))
            return size_in(answer, place.partition)

        first, end = await self._offset(place, FIRST), await self._offset(place, END)
        return first, end, await self._cluster.insist(f"the size of {place.topic}", size)

    async def _offset(self, place: TopicPartition, when: int) -> int:
        try:
            return await self._cluster.insist(
                f"offsets of {place.topic}-{place.partition}", lambda: offset_at(self._cluster, place, when)
            )
        except errors.KafkaError as e:
            raise BusError(f"topic {place.topic}: {e!r}") from e
