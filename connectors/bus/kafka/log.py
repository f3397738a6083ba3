"""Reading and writing one partition: its ends, what lies between two offsets, and appending a batch."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from aiokafka import TopicPartition, errors
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from headrace.connectors.bus.kafka.cluster import ANSWER_S, Cluster, check

FIRST, END = -2, -1  # what may be asked for in place of a time
_FETCH_BYTES = 4 * 1024 * 1024
_WAIT_MS = 100
_MAGIC = 2
_NO_COMPRESSION = 0

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it lies in a partition."""

    offset: int
    time_ms: int
    key: bytes | None
    data: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Producer:
    """Who appends: the broker refuses an older epoch, a number that it knows, and one that leaves a gap."""

    id: int
    epoch: int
    sequence: int


async def offset_at(cluster: Cluster, place: TopicPartition, when: int) -> int:
    """The first offset at or after a time (ms), or FIRST, or END. One try; the end where nothing is that new."""
    answer = await cluster.ask_leader(place, OffsetRequest(-1, 0, [(place.topic, [(place.partition, when)])]))
    [(_, [(_, code, _, offset)])] = answer.topics
    check(code, f"offsets of {place.topic}-{place.partition}")
    return await offset_at(cluster, place, END) if offset < 0 else int(offset)


async def fetch(cluster: Cluster, place: TopicPartition, offset: int) -> tuple[list[Stored], int]:
    """What lies at an offset and behind it, some MiB of it, and where to go on. One try."""
    wanted = [(place.topic, [(place.partition, offset, _FETCH_BYTES)])]
    answer = await cluster.ask_leader(place, FetchRequest(_WAIT_MS, 1, _FETCH_BYTES, 0, wanted))
    [(_, [found])] = answer.topics
    check(found[1], f"reading {place.topic}-{place.partition} at {offset}")
    return _records(found[-1] or b"", offset)


async def read_between(cluster: Cluster, place: TopicPartition, start: int, end: int) -> list[Stored]:
    """All records from one offset up to another, tried again until they are read.

    What retention has taken meanwhile is left out. Raises BusError.
    """
    found: list[Stored] = []
    while start < end:
        try:
            what = f"reading {place.topic}-{place.partition}"
            records, after = await cluster.insist(what, partial(fetch, cluster, place, start))
        except errors.OffsetOutOfRangeError:
            first = await cluster.insist(
                f"offsets of {place.topic}-{place.partition}", lambda: offset_at(cluster, place, FIRST)
            )
            if first <= start:  # the end that we knew is gone with its topic
                break
            start = first
            continue
        found += [record for record in records if record.offset < end]
        start = after
    return found


async def append(cluster: Cluster, place: TopicPartition, producer: Producer, record: Stored) -> int:
    """Append one record under a producer's epoch and number, on all in-sync replicas; its offset. One try."""
    builder = DefaultRecordBatchBuilder(
        _MAGIC, _NO_COMPRESSION, 0, producer.id, producer.epoch, producer.sequence, len(record.data) + 65536
    )
    builder.append(0, timestamp=record.time_ms, key=record.key, value=record.data, headers=record.headers)
    batches = [(place.topic, [(place.partition, bytes(builder.build()))])]
    answer = await cluster.ask_leader(place, ProduceRequest(None, -1, int(ANSWER_S * 1000), batches))
    [(_, [(_, code, offset, *_)])] = answer.topics
    check(code, f"appending to {place.topic}-{place.partition}")
    return int(offset)


def _records(raw: bytes, start: int) -> tuple[list[Stored], int]:
    found: list[Stored] = []
    batches: Any = MemoryRecords(raw)
    after = start
    while batches.has_next():
        batch = batches.next_batch()
        if not batch.is_control_batch:
            found += [
                Stored(record.offset, record.timestamp, record.key, record.value or b"", list(record.headers))
                for record in batch
                if record.offset >= start
            ]
        after = max(after, batch.next_offset)
    return found, after
