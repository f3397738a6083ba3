"""Compare-and-append on Kafka: a record is stored only if nobody has written its key since.

Kafka compares no positions, but it refuses the older of two producers that share a transactional id. So each DGD and
stream has one. Who wants to write takes the next epoch of that id, has an empty transaction ended on the partition (its
marker tells the partition of the epoch: from then on it refuses all older ones), takes one more epoch, and reads the
partition to its end. If the newest record of the key is the expected one it appends; the broker refuses that append
if another has taken an epoch and put its marker meanwhile, and then all begins again. See docs/decisions/0009.
"""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from aiokafka import TopicPartition, errors
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from headrace.connectors.bus.kafka.cluster import ANSWER_S, Cluster, check, passing
from headrace.connectors.bus.kafka.log import Producer, Stored, append
from headrace.connectors.bus.kafka.tail import Tail, id_of
from headrace.schemas.errors import BusError

# Kafka forgets the epochs of an id after a day without a record in the partition, and of a transactional id after a
# week; an epoch that is taken anew before that is never forgotten while its owner lives.
RENEW_S = 6 * 3600.0
_TRANSACTION_MS = 10_000  # an empty one that its owner left open is ended by the broker after this
_LONGEST_WAIT_S = 0.4
_AGAIN = "it may have been stored: publish it again with the same message id"


class NotTheLast(Exception):
    """The newest record of the key is another than the writer expects."""

    def __init__(self, newest: int | None) -> None:
        super().__init__(newest)
        self.newest = newest  # its offset; None: there is none


class _Overtaken(Exception):
    """Another writer has taken a later epoch."""


_FENCED = (
    errors.InvalidProducerEpoch,
    errors.ProducerFenced,
    errors.InvalidProducerIdMapping,
    errors.InvalidTxnState,
    errors.OutOfOrderSequenceNumber,
    errors.DuplicateSequenceNumber,
    errors.UnknownProducerId,
    _Overtaken,
)


@dataclass(frozen=True, slots=True)
class _Claim:
    """An epoch that was the newest when it was taken."""

    producer: Producer
    taken_at: float  # loop time


class Fence:
    """Appends under this process's epochs, one per DGD and stream. Callers hold the lock of the partition's tail."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._claims: dict[str, _Claim] = {}
        self._overtaken: defaultdict[str, int] = defaultdict(int)

    async def append(self, fence: str, tail: Tail, place: TopicPartition, record: Stored, expected: int | None) -> int:
        """Store a record if the newest of its key is at the offset `expected` (None = there is none); its offset.

        The record carries a message id: when the newest one has it, a try whose answer was lost had stored it. Raises
        NotTheLast, or BusError after the patience.
        """
        assert record.key is not None
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._cluster.options.patience_s
        settled = True  # what became of each try is known; else its number must not be used again
        try:
            while True:
                stored = await self._look(tail, record, expected)
                if stored is not None:
                    return stored
                if loop.time() > give_up:
                    raise BusError(f"{_text(record.key)} on {place.topic} could not be stored in time; {_AGAIN}")
                claim = self._claims.get(fence)
                if claim is None or loop.time() > claim.taken_at + RENEW_S:
                    await self._claim(fence, place, give_up)
                    settled = True
                    continue  # somebody may have written until now
                settled = False
                if (offset := await self._try(fence, claim, tail, place, record)) is not None:
                    settled = True
                    return offset
        finally:
            if not settled:
                self._claims.pop(fence, None)

    async def _look(self, tail: Tail, record: Stored, expected: int | None) -> int | None:
        """The offset where the record is stored already, or None when it may be. Raises NotTheLast."""
        assert record.key is not None
        await tail.refresh()
        newest = await tail.newest(record.key)
        message_id = id_of(record.headers)
        assert message_id is not None
        found = tail.holds(message_id)
        if found is not None:
            return found
        if newest is not None and newest.message_id == message_id:
            return newest.offset
        at = None if newest is None else newest.offset
        if at != expected:
            raise NotTheLast(at)
        return None

    async def _try(self, fence: str, claim: _Claim, tail: Tail, place: TopicPartition, record: Stored) -> int | None:
        """Append once; the offset, or None when it must be looked again."""
        try:
            offset = await append(self._cluster, place, claim.producer, record)
            if offset < tail.end:  # our number was taken, by a try whose answer was lost: that record's offset
                raise _Overtaken
        except _FENCED:
            del self._claims[fence]
            await self._give_way(fence)
            return None
        except (errors.KafkaError, OSError, TimeoutError) as e:
            if not passing(e):
                raise
            await self._cluster.refresh()
            await asyncio.sleep(0.05)
            return None
        producer = replace(claim.producer, sequence=claim.producer.sequence + 1)
        self._claims[fence] = replace(claim, producer=producer)
        self._overtaken.pop(fence, None)
        return offset

    async def _claim(self, fence: str, place: TopicPartition, give_up: float) -> None:
        """Take an epoch that is newer than all others, and tell the partition. Raises BusError."""

        async def attempt() -> Producer | None:
            try:
                return await self._next_epoch(fence, place)
            except _FENCED:
                return None

        loop = asyncio.get_running_loop()
        while True:
            producer = await self._cluster.insist(f"taking the epoch of {fence}", attempt, give_up)
            if producer is not None:
                self._claims[fence] = _Claim(producer, loop.time())
                return
            if loop.time() > give_up:
                raise BusError(f"no epoch could be taken for {fence}: others take it all the time")
            await self._give_way(fence)

    async def _next_epoch(self, fence: str, place: TopicPartition) -> Producer:
        """Two epochs in a row around a marker. One that another took in between would not be behind the marker."""
        first = await self._initialise(fence)
        request = AddPartitionsToTxnRequest(fence, first.id, first.epoch, [(place.topic, [place.partition])])
        answer = await self._ask(fence, request)
        [(_, [(_, code)])] = answer.errors
        self._check(fence, code, f"a marker on {place.topic}-{place.partition}")
        answer = await self._ask(fence, EndTxnRequest(fence, first.id, first.epoch, False))
        self._check(fence, answer.error_code, f"a marker on {place.topic}-{place.partition}")
        second = await self._initialise(fence)  # the broker answers when the marker lies in the partition
        if second != replace(first, epoch=first.epoch + 1):
            raise _Overtaken
        return second

    async def _initialise(self, fence: str) -> Producer:
        give_up = asyncio.get_running_loop().time() + ANSWER_S
        while True:
            answer = await self._ask(fence, InitProducerIdRequest(fence, _TRANSACTION_MS))
            if asyncio.get_running_loop().time() > give_up:
                break
            if errors.for_code(answer.error_code) is not errors.ConcurrentTransactions:
                break
            await asyncio.sleep(0.005 + 0.005 * random.random())
        self._check(fence, answer.error_code, f"the epoch of {fence}")
        return Producer(int(answer.producer_id), int(answer.producer_epoch), 0)

    async def _ask(self, fence: str, request: Any) -> Any:
        return await self._cluster.ask_coordinator(fence, request)

    def _check(self, fence: str, code: int, what: str) -> None:
        if errors.for_code(code) is errors.ConcurrentTransactions:
            raise _Overtaken
        try:
            check(code, what)
        except errors.KafkaError as e:
            self._cluster.coordinator_moved(fence, e)
            raise

    async def _give_way(self, fence: str) -> None:
        """Wait a little, longer each time, so that one of several who take epochs from each other gets through."""
        self._overtaken[fence] += 1
        await asyncio.sleep(random.uniform(0, min(_LONGEST_WAIT_S, 0.02 * 2 ** self._overtaken[fence])))


def _text(key: bytes) -> str:
    return key.decode(errors="replace")
