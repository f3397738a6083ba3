"""Records instead of bytes on a bus. What cannot be decoded becomes a dead letter, and the reader goes on."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from headrace.connectors.bus.base import Bus, Message, Outgoing, Reader, ReaderClosed
from headrace.schemas.base import Record, is_dgd
from headrace.schemas.cloudevents import headers_for, record_id
from headrace.schemas.codec import decode, encode
from headrace.schemas.deadletter import UNKNOWN_DGD, DeadLetter, cut, cut_headers
from headrace.schemas.errors import BusError, RecordError
from headrace.schemas.reasons import DeadLetterReason
from headrace.schemas.streams import DEADLETTERS, STREAMS, Stream, stream_of

log = logging.getLogger(__name__)

Clock = Callable[[], float]

REQUEUED = "headrace-requeued"  # header of a message that was a dead letter


class RecordBus:
    """Publishes and reads records on a bus, as one named process.

    `reader_name` signs dead letters and is the CloudEvents source (``/headrace/<name>``); `clock` gives seconds since
    the epoch. `dead_letters` counts them by (stream, reason), `dead_letters_lost` those that could not be stored.
    """

    def __init__(self, bus: Bus, reader_name: str, clock: Clock) -> None:
        self.bus = bus
        self.reader_name = reader_name
        self.clock = clock
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        self.dead_letters_lost = 0

    async def publish(self, record: Record, message_id: str | None = None, expect_last: int | None = None) -> int:
        """Store a record on its stream; its position. Raises as `Bus.publish` does.

        The message id is the record's own identity where none is given: the same record published twice counts once.
        """
        return await self.bus.publish(self._outgoing(record, message_id), expect_last=expect_last)

    async def publish_many(self, records: Sequence[Record]) -> None:
        """Store records in order, with one wait for all."""
        await self.bus.publish_many([self._outgoing(record, None) for record in records])

    async def read(self, stream: Stream, key: str | None = None, after: int | None = None) -> "RecordReader":
        """Read the records of a stream, or of one DGD on it; `after` as in `Bus.read`."""
        return RecordReader(self, stream, await self.bus.read(stream, key=key, after=after))

    async def last(self, stream: Stream, key: str) -> tuple[Record, Message] | None:
        """The newest record of a DGD, or None. Raises RecordError when it cannot be decoded."""
        message = await self.bus.last(stream, key)
        return None if message is None else (_decoded(stream, message), message)

    async def reject(self, message: Message, reason: str, why: str, item: int | None = None) -> None:
        """Put a message, or the item of a batch in it, to the dead letters. Never raises for the bus: it is counted."""
        await self.put_dead_letter(self.letter_for(message, reason, why, item))

    def letter_for(self, message: Message, reason: str, why: str, item: int | None = None) -> DeadLetter:
        """The dead letter about a message, or about the item of a batch in it."""
        return DeadLetter(
            dgd=message.key if is_dgd(message.key) else UNKNOWN_DGD,
            reason=reason,
            message=why,
            reader=self.reader_name,
            stream=message.stream,
            position=message.position,
            at=self.clock(),
            data=cut(message.data),
            size=len(message.data),
            headers=cut_headers(message.headers),
            item=item,
        )

    async def put_dead_letter(self, letter: DeadLetter) -> None:
        """Store a dead letter and count it. When even that fails it is logged and counted: a reader must go on."""
        self.dead_letters[letter.stream, letter.reason] += 1
        try:
            await self.publish(letter)
        except BusError as e:
            self.dead_letters_lost += 1
            log.error(
                "dead letter lost: %s at %s of %s, %d bytes (%s): %s",
                letter.reason, letter.position, letter.stream, letter.size, letter.message, e,
            )  # fmt: skip

    async def requeue(self, letter: DeadLetter) -> int:
        """Publish the bytes of a dead letter again where they came from; the new position. Repeating it counts once.

        Raises RecordError when that cannot help: they were cut, came from no stream of ours, are one item of a batch,
        or still cannot be decoded.
        """
        where = f"dead letter of {letter.stream} at {letter.position}"
        if letter.stream not in STREAMS or letter.position is None:
            raise RecordError(f"{where}: it came from no stream of ours; send it again where it came from")
        if letter.item is not None:
            raise RecordError(f"{where}: it is item {letter.item} of a batch, whose other items were used")
        if letter.size > len(letter.data):
            raise RecordError(f"{where}: only {len(letter.data)} of its {letter.size} bytes were kept")
        record = decode(letter.stream, letter.data)
        headers = {**letter.headers, REQUEUED: "1"}
        message_id = f"requeue:{letter.stream}:{letter.position}"
        return await self.bus.publish(Outgoing(letter.stream, record.dgd, letter.data, headers, message_id))

    def _outgoing(self, record: Record, message_id: str | None) -> Outgoing:
        identity = message_id or record_id(record)
        headers = headers_for(record, source=f"/headrace/{self.reader_name}", record_id=identity)
        return Outgoing(stream_of(record).name, record.dgd, encode(record), headers, identity)


class RecordReader:
    """Decoded records of one stream, in order, with the messages that they came in."""

    def __init__(self, records: RecordBus, stream: Stream, reader: Reader) -> None:
        self._records = records
        self._stream = stream
        self._reader = reader
        self.position = 0  # of the last message taken, dead letters included

    async def next(self, timeout: float | None = None, limit: int = 1000) -> list[tuple[Record, Message]]:
        """As `Reader.next`; an empty list also when all that came was put to the dead letters."""
        found: list[tuple[Record, Message]] = []
        for message in await self._reader.next(timeout, limit):
            self.position = message.position
            try:
                found.append((_decoded(self._stream, message), message))
            except RecordError as e:
                await self._reject(message, e)
        return found

    async def close(self) -> None:
        await self._reader.close()

    async def __aiter__(self) -> AsyncIterator[list[tuple[Record, Message]]]:
        """Lists of what arrives, until the reader is closed."""
        while True:
            try:
                found = await self.next()
            except ReaderClosed:
                return
            if found:
                yield found

    async def _reject(self, message: Message, e: RecordError) -> None:
        if self._stream is DEADLETTERS:  # a dead letter about a dead letter would be read here again
            self._records.dead_letters[self._stream.name, e.reason] += 1
            log.error("dead letter at %d cannot be read: %s", message.position, e)
            return
        await self._records.reject(message, e.reason, f"{e}")


def _decoded(stream: Stream, message: Message) -> Record:
    record = decode(stream, message.data)
    if record.dgd != message.key:
        raise RecordError(
            f"{stream.name} record of {record.dgd} under the key {message.key}: a record's key is its DGD",
            reason=DeadLetterReason.INVALID,
        )
    return record
