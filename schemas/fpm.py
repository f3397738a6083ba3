"""ForwardPassMetrics: what an engine says after each iteration, in Dynamo's own bytes (version 1).

Field order is Dynamo's, so that encoding gives the same bytes. Tokens are counts, times are seconds.
Source: Dynamo 1.4.2, `forward_pass_metrics.py`, and captures of its event plane.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.schemas.base import Amount, Count, Seconds, Unsigned
from headrace.schemas.errors import RecordError
from headrace.schemas.reasons import DeadLetterReason

Milliseconds = Annotated[int, Meta(ge=0, le=10**15)]  # as far as `Seconds` reach

TOPIC = "forward-pass-metrics"
VERSION = 1


class ScheduledRequests(msgspec.Struct, frozen=True, gc=False):
    """The work of this iteration."""

    num_prefill_requests: Count = 0
    sum_prefill_tokens: Count = 0  # computed now: cache hits and earlier chunks excluded
    var_prefill_length: Amount = 0.0
    sum_prefill_kv_tokens: Count = 0
    num_decode_requests: Count = 0
    sum_decode_kv_tokens: Count = 0  # context length of the decoding requests
    var_decode_kv_tokens: Amount = 0.0


class QueuedRequests(msgspec.Struct, frozen=True, gc=False):
    """What still waits after this iteration; prompt tokens without any cache discount."""

    num_prefill_requests: Count = 0
    sum_prefill_tokens: Count = 0
    var_prefill_length: Amount = 0.0
    num_decode_requests: Count = 0
    sum_decode_kv_tokens: Count = 0
    var_decode_kv_tokens: Amount = 0.0


class Fpm(msgspec.Struct, frozen=True, gc=False):
    """One iteration of one engine rank. All zero with ``wall_time == 0`` is the heartbeat of an idle engine."""

    version: int = VERSION  # 1
    worker_id: str = ""  # decimal of an unsigned 64-bit id: never a float, never an i64
    dp_rank: Unsigned = 0  # data-parallel rank; ranks of one worker share its id
    counter_id: Unsigned = 0  # rises by one per message of a worker and rank
    wall_time: Seconds = 0.0  # seconds that the iteration took
    scheduled_requests: ScheduledRequests = ScheduledRequests()
    queued_requests: QueuedRequests = QueuedRequests()


class FpmEnvelope(msgspec.Struct, frozen=True, gc=False):
    """Dynamo's event envelope; ``payload`` is the msgpack document of an :class:`Fpm`."""

    publisher_id: Unsigned
    sequence: Unsigned
    published_at: Milliseconds  # since 1970, UTC
    topic: str
    payload: bytes


class _Versioned(msgspec.Struct):
    version: int = VERSION


_decode_fpm = msgspec.msgpack.Decoder(Fpm).decode
_decode_version = msgspec.msgpack.Decoder(_Versioned).decode
_decode_envelope = msgspec.msgpack.Decoder(FpmEnvelope).decode
_encoder = msgspec.msgpack.Encoder()
_SHOWN = 300  # characters of foreign text that are worth keeping in a message


def decode_fpm(payload: bytes) -> Fpm:
    """Decode the FPM inside an envelope. Fields that version 1 does not know are ignored.

    Raises RecordError: `undecodable` (not msgpack, wrong types, negative, NaN or absurd numbers),
    `unsupported_version`, `empty_worker_id` (dynamo#12591: an id read before it was assigned).
    """
    try:
        fpm = _decode_fpm(payload)
    except (msgspec.DecodeError, RecursionError) as e:
        _refuse_other_versions(payload)
        raise RecordError(f"FPM of {len(payload)} bytes: {str(e)[:_SHOWN]}", reason=DeadLetterReason.UNDECODABLE) from e
    if fpm.version != VERSION:
        raise _unsupported(fpm.version)
    if not fpm.worker_id:
        raise RecordError(
            "FPM without a worker_id cannot be attributed to an engine", reason=DeadLetterReason.EMPTY_WORKER_ID
        )
    return fpm


def _refuse_other_versions(payload: bytes) -> None:
    """A later version may break any rule of this one, so its number is looked at before it is called undecodable."""
    try:
        version = _decode_version(payload).version
    except (msgspec.DecodeError, RecursionError):
        return
    if version != VERSION:
        raise _unsupported(version)


def _unsupported(version: int) -> RecordError:
    return RecordError(
        f"FPM version {version}: only version {VERSION} is known", reason=DeadLetterReason.UNSUPPORTED_VERSION
    )


def decode_envelope(data: bytes) -> FpmEnvelope:
    """Decode Dynamo's event envelope, a msgpack map; unknown keys are ignored.

    Dynamo's own subscriber would also take an array of the five values. No publisher sends one, and an array leaves no
    room for a new field, so it is refused here. Raises RecordError: `undecodable`, `wrong_topic`.
    """
    try:
        envelope = _decode_envelope(data)
    except (msgspec.DecodeError, RecursionError) as e:
        raise RecordError(
            f"event envelope of {len(data)} bytes: {str(e)[:_SHOWN]}", reason=DeadLetterReason.UNDECODABLE
        ) from e
    if envelope.topic != TOPIC:
        raise RecordError(
            f"event envelope has topic {envelope.topic[:_SHOWN]!r}, not {TOPIC!r}", reason=DeadLetterReason.WRONG_TOPIC
        )
    return envelope


def encode_fpm(fpm: Fpm) -> bytes:
    """The bytes that Dynamo would write for this FPM."""
    return _encoder.encode(fpm)


def encode_envelope(envelope: FpmEnvelope) -> bytes:
    """The bytes that Dynamo would publish on NATS."""
    return _encoder.encode(envelope)
