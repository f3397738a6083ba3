"""What Headrace asks of a bus. The in-memory bus, NATS JetStream and Kafka pass the same contract tests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.schemas.streams import Stream


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes that the bus has stored.

    `position` rises within a stream (JetStream sequence, Kafka offset) and is what a reader resumes after.
    """

    stream: str
    key: str  # the DGD
    position: int
    data: bytes
    headers: Mapping[str, str]
    stored_at: float  # seconds, the broker's clock


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Bytes to be stored. `message_id` makes a repeated publish count once within the bus's duplicate window."""

    stream: str
    key: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class StreamInfo:
    name: str
    messages: int
    size_bytes: int
    first_position: int
    last_position: int
    keys: int | None = None


class Reader(Protocol):
    """An ordered reader of one stream: no redelivery, no reordering, no gap while the bus keeps the messages."""

    async def next(self, timeout: float | None = None, limit: int = 1000) -> list[Message]:
        """What has arrived, oldest first: at least one message, or an empty list when `timeout` seconds pass.

        Survives a broker restart: resumes after the last message that it returned.
        """

    async def close(self) -> None: ...


class Bus(Protocol):
    async def open(self) -> None:
        """Connect. Raises BusError naming the address and the remedy."""

    async def close(self) -> None: ...

    async def ensure(self, streams: Iterable[Stream]) -> None:
        """Create the streams, or migrate their limits to the table. Idempotent; safe from many processes at once."""

    async def publish(self, out: Outgoing, *, expect_last: int | None = None) -> int:
        """Store one message and return its position; when this returns, the broker has it.

        With `expect_last`, the broker stores it only if that is the position of the newest message of this stream
        and key (0 = there is none yet). Raises Fenced when it is not; BusError when the broker cannot be reached
        within the bus's patience.
        """

    async def publish_many(self, batch: Sequence[Outgoing]) -> None:
        """Store messages in order, with one wait for all; when this returns, the broker has them all."""

    async def read(self, stream: Stream, *, key: str | None = None, after: int | None = None) -> Reader:
        """Read a stream, or one key of it, from after a position. None = only what comes from now on; 0 = all that is kept."""

    async def last(self, stream: Stream, key: str) -> Message | None:
        """The newest message of a key, or None."""

    async def info(self, stream: Stream) -> StreamInfo: ...

    @property
    def connected(self) -> bool: ...
