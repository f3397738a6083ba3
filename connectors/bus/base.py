"""What Headrace asks of a bus. The in-memory bus, NATS JetStream and Kafka pass the same contract tests."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.schemas.errors import BusError
from headrace.schemas.streams import Stream

DUPLICATE_WINDOW_S = 120.0  # how long a bus remembers a message id
MAX_MESSAGE_BYTES = 8 * 1024 * 1024  # key, headers and data, where the broker allows it


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
    """What a stream holds. `messages` may be more than a reader gets where the broker counts places (Kafka: what was
    replaced and not yet compacted, and its own marks); `keys` is None where it does not know."""

    name: str
    messages: int
    size_bytes: int
    first_position: int
    last_position: int
    keys: int | None = None


class ReaderClosed(BusError):
    """The reader, or its bus, was closed before."""


class TooLarge(BusError):
    """The message is above the broker's limit: trying again does not help."""


class Reader(Protocol):
    """An ordered reader of one stream: no redelivery, no reordering, no gap while the bus keeps the messages.

    Where retention has dropped what comes next, it goes on at the oldest message that is kept.
    """

    async def next(self, timeout: float | None = None, limit: int = 1000) -> list[Message]:
        """What has arrived, oldest first: at least one message, or an empty list when `timeout` seconds pass.

        Survives a broker restart: resumes after the last message that it returned. One caller at a time. Returns an
        empty list when the reader is closed while this waits; raises ReaderClosed when it was closed before.
        """

    async def close(self) -> None: ...


class Bus(Protocol):
    async def open(self) -> None:
        """Connect. Raises BusError naming the address and the remedy."""

    async def close(self) -> None:
        """Close the readers and disconnect. Idempotent."""

    async def ensure(self, streams: Iterable[Stream]) -> None:
        """Create the streams, or migrate their limits to the table. Idempotent; safe from many processes at once."""

    async def publish(self, out: Outgoing, *, expect_last: int | None = None) -> int:
        """Store one message and return its position; when this returns, the broker has it.

        With `expect_last`, the broker stores it only if that is the position of the newest message of this stream
        and key (0 = there is none yet). Raises Fenced when it is not; TooLarge; BusError when the broker cannot be
        reached within the bus's patience. A message id that is already stored, within the duplicate window or as the
        newest message of the key, is not stored again: the position of the first is returned.
        """

    async def publish_many(self, batch: Sequence[Outgoing]) -> None:
        """Store messages in order, with one wait for all; when this returns, the broker has them all.

        Raises BusError when it cannot: then some may be stored, and the same batch with the same message ids may be
        published again.
        """

    async def read(self, stream: Stream, *, key: str | None = None, after: int | None = None) -> Reader:
        """Read a stream, or one key of it, from after a position. None = only what comes; 0 = all that is kept.

        A position beyond the end is one of a stream that was lost: then all that is kept is read.
        """

    async def read_keys(self, stream: Stream, keys: Collection[str], after: int) -> Reader:
        """Read some keys of a stream from after a position, in one order; otherwise as `read`."""

    async def last(self, stream: Stream, key: str) -> Message | None:
        """The newest message of a key, or None."""

    async def keys(self, stream: Stream) -> set[str]:
        """The keys of which the stream keeps a message."""

    async def info(self, stream: Stream) -> StreamInfo: ...

    @property
    def connected(self) -> bool: ...

    @property
    def one_order(self) -> bool:
        """Do messages of all keys of a stream come in the order of their positions? Then readers can be shared."""


def split_key(key: str) -> tuple[str, str]:
    """Namespace and name of a DGD. Raises BusError when the key has no two parts."""
    namespace, slash, name = key.partition("/")
    if not (slash and namespace and name):
        raise BusError(f"key {key!r}: a key is a DGD, namespace/name; both parts must be there")
    return namespace, name


def check_headers(out: Outgoing) -> None:
    """Refuse headers that a broker would change, cut or misread. Raises BusError."""
    for name, value in out.headers.items():
        if not (name and name.isascii() and name.isprintable()) or any(c in " :" for c in name):
            raise BusError(f"header name {name!r} on {out.stream}: printable ASCII without space and colon is needed")
        if name.lower().startswith("nats-"):
            raise BusError(f"header {name!r} on {out.stream}: names that begin with Nats- belong to the broker")
        if value != value.strip() or "\r" in value or "\n" in value:
            raise BusError(
                f"header {name} = {value!r} on {out.stream}: no line breaks, no space at the ends; encode it"
            )


def size_of(out: Outgoing) -> int:
    """Bytes of headers and data as a broker counts them, a few too many rather than too few."""
    headers = sum(len(k) + len(v.encode()) + 4 for k, v in out.headers.items())
    return len(out.data) + headers + (len(out.message_id.encode()) if out.message_id else 0) + 128


def too_large(out: Outgoing, limit: int) -> TooLarge:
    """The error for a message that the broker would refuse for its size."""
    return TooLarge(
        f"message of {size_of(out)} bytes for {out.key} on {out.stream} is above the broker's limit of {limit} bytes "
        f"(max_payload on NATS): raise that limit, or publish less at once"
    )
