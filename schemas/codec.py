"""Records to bytes and back, by the codec of their stream."""

from typing import Any

import msgspec

from headrace.schemas.base import Record
from headrace.schemas.errors import RecordError
from headrace.schemas.streams import STREAMS, Stream, stream_of

_json = msgspec.json.Encoder(order="deterministic")
_msgpack = msgspec.msgpack.Encoder()
_decoders: dict[str, Any] = {
    s.name: msgspec.json.Decoder(s.record) if s.codec == "json" else msgspec.msgpack.Decoder(s.record)
    for s in STREAMS.values()
}


def encode(record: Record) -> bytes:
    """The bytes of a record on its stream. Deterministic: the same record gives the same bytes."""
    return (_json if stream_of(record).codec == "json" else _msgpack).encode(record)


def decode(stream: Stream | str, data: bytes) -> Record:
    """The record in `data`, checked against the stream's schema.

    Raises RecordError with reason `undecodable`, or `unsupported_version` when the tag is of another major version.
    """
    name = stream if isinstance(stream, str) else stream.name
    try:
        record: Record = _decoders[name].decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        reason = "unsupported_version" if "Invalid value" in str(e) and "`$.schema`" in str(e) else "undecodable"
        raise RecordError(f"{name} record of {len(data)} bytes: {e}", reason=reason) from e
    return record
