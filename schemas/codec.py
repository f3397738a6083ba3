"""Records to bytes and back, by the codec of their stream."""

from typing import Any

import msgspec

from headrace.schemas.base import Record, schema_of
from headrace.schemas.errors import ConfigError, RecordError
from headrace.schemas.reasons import DeadLetterReason
from headrace.schemas.streams import STREAMS, Stream, stream_of


class _Tagged(msgspec.Struct):
    schema: str | None = None


_SHOWN = 300  # characters of a decoder's complaint that are worth keeping

_json = msgspec.json.Encoder(order="deterministic")
_msgpack = msgspec.msgpack.Encoder()


class _Reader:
    """How the records of one stream are read; made once, for decoding is the hot path of every FPM."""

    __slots__ = ("record", "schema", "tag")

    def __init__(self, stream: Stream) -> None:
        decoder: Any = msgspec.json.Decoder if stream.codec == "json" else msgspec.msgpack.Decoder
        self.record = decoder(stream.record).decode
        self.tag = decoder(_Tagged).decode
        self.schema = schema_of(stream.record)


_readers = {stream.name: _Reader(stream) for stream in STREAMS.values()}


def encode(record: Record) -> bytes:
    """The bytes of a record on its stream. Deterministic: the same record gives the same bytes."""
    return (_json if stream_of(record).codec == "json" else _msgpack).encode(record)


def decode(stream: Stream | str, data: bytes) -> Record:
    """The record in `data`, checked against the stream's schema. Fields that the schema does not know are ignored.

    Raises RecordError, its message with the path of what is wrong. Reasons: `undecodable`; `unsupported_version` for
    another major version of the stream's record; `wrong_schema` for any other record.
    """
    name = stream if isinstance(stream, str) else stream.name
    reader = _readers[name]
    try:
        tag = reader.tag(data).schema
        if tag != reader.schema:
            raise _wrong(name, reader.schema, tag)
        record: Record = reader.record(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ConfigError) as e:
        complaint = str(e)[:_SHOWN]
        raise RecordError(
            f"{name} record of {len(data)} bytes: {complaint}", reason=DeadLetterReason.UNDECODABLE
        ) from e
    return record


def _wrong(name: str, expected: str, tag: str | None) -> RecordError:
    """msgspec takes a struct without its tag for one with it; a record must say what it is."""
    if tag is None:
        return RecordError(
            f"{name} record: Object missing required field `schema`; write {expected!r} there",
            reason=DeadLetterReason.UNDECODABLE,
        )
    same_kind = tag.rpartition(".v")[0] == expected.rpartition(".v")[0]
    return RecordError(
        f"{name} record: `$.schema` is {tag[:_SHOWN]!r}, and only {expected!r} is known here",
        reason=DeadLetterReason.UNSUPPORTED_VERSION if same_kind else DeadLetterReason.WRONG_SCHEMA,
    )


def plain(record: Record) -> dict[str, Any]:
    """A record as JSON would show it, also where its stream speaks msgpack: byte strings become base64."""
    shown: dict[str, Any] = msgspec.json.decode(_json.encode(record))
    return shown
