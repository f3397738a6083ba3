"""Dynamo's ForwardPassMetrics and event envelope, byte for byte."""

import base64
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import (
    TOPIC,
    Fpm,
    FpmEnvelope,
    QueuedRequests,
    ScheduledRequests,
    decode_envelope,
    decode_fpm,
    encode_envelope,
    encode_fpm,
)
from headrace.schemas.reasons import DeadLetterReason

U64_MAX = 2**64 - 1
NaN, INF = float("nan"), float("inf")


def text(value: str) -> bytes:
    """A msgpack string of fewer than 32 bytes."""
    return bytes([0xA0 | len(value)]) + value.encode()


def f64(value: float) -> bytes:
    return b"\xcb" + struct.pack(">d", value)


# A message of a mocker engine on the event plane of Dynamo 1.4.2, written out by hand: 525 bytes.
SCHEDULED = b"\x87" + b"".join(
    [
        text("num_prefill_requests") + b"\x00",
        text("sum_prefill_tokens") + b"\x00",
        text("var_prefill_length") + f64(0.0),
        text("sum_prefill_kv_tokens") + b"\x00",
        text("num_decode_requests") + b"\x03",
        text("sum_decode_kv_tokens") + b"\xcd\x20\x60",
        text("var_decode_kv_tokens") + f64(3317282.8888888895),
    ]
)
QUEUED = b"\x86" + b"".join(
    [
        text("num_prefill_requests") + b"\x00",
        text("sum_prefill_tokens") + b"\x00",
        text("var_prefill_length") + f64(0.0),
        text("num_decode_requests") + b"\x00",
        text("sum_decode_kv_tokens") + b"\x00",
        text("var_decode_kv_tokens") + f64(0.0),
    ]
)
PAYLOAD = b"\x87" + b"".join(
    [
        text("version") + b"\x01",
        text("worker_id") + text("9041998999865286175"),
        text("dp_rank") + b"\x00",
        text("counter_id") + b"\xcd\x03\x83",
        text("wall_time") + bytes.fromhex("cb3f8f8ed31713c6a8"),
        text("scheduled_requests") + SCHEDULED,
        text("queued_requests") + QUEUED,
    ]
)
MESSAGE = b"\x85" + b"".join(
    [
        text("publisher_id") + bytes.fromhex("cf001aad654d5a20d5"),
        text("sequence") + b"\xcd\x03\x82",
        text("published_at") + bytes.fromhex("cf000001a22f19597e"),
        text("topic") + text(TOPIC),
        text("payload") + b"\xc5" + struct.pack(">H", len(PAYLOAD)) + PAYLOAD,
    ]
)


def document(**changes: Any) -> bytes:
    """An FPM in msgpack, with some fields as given."""
    tree = {
        "version": 1,
        "worker_id": "7",
        "dp_rank": 0,
        "counter_id": 1,
        "wall_time": 0.5,
        "scheduled_requests": {},
        "queued_requests": {},
    }
    return msgspec.msgpack.encode(tree | changes)


def envelope(**changes: Any) -> bytes:
    tree = {"publisher_id": 1, "sequence": 0, "published_at": 1796086520190, "topic": TOPIC, "payload": b"x"}
    return msgspec.msgpack.encode({key: value for key, value in (tree | changes).items() if value is not None})


def refusal(payload: bytes) -> RecordError:
    with pytest.raises(RecordError) as caught:
        decode_fpm(payload)
    return caught.value


def test_a_message_of_dynamo_is_read_as_it_was_meant() -> None:
    assert len(MESSAGE) == 525
    outer = decode_envelope(MESSAGE)
    assert outer == FpmEnvelope(7508999995531477, 898, 1796086520190, TOPIC, PAYLOAD)
    assert decode_fpm(outer.payload) == Fpm(
        version=1,
        worker_id="9041998999865286175",
        dp_rank=0,
        counter_id=899,
        wall_time=0.015409135000001697,
        scheduled_requests=ScheduledRequests(
            num_decode_requests=3, sum_decode_kv_tokens=8288, var_decode_kv_tokens=3317282.8888888895
        ),
        queued_requests=QueuedRequests(),
    )


def test_a_message_of_dynamo_is_written_byte_for_byte() -> None:
    outer = decode_envelope(MESSAGE)
    again = msgspec.structs.replace(outer, payload=encode_fpm(decode_fpm(outer.payload)))
    assert encode_envelope(again) == MESSAGE


@pytest.mark.shared
@pytest.mark.parametrize(("capture", "messages"), [("disagg_fpm.jsonl.gz", 3249), ("agg_fpm.jsonl.gz", 3511)])
def test_every_captured_message_is_read_and_written_byte_for_byte(shared: Path, capture: str, messages: int) -> None:
    seen = 0
    with gzip.open(shared / "data" / "captures" / capture, "rt") as lines:
        for line in lines:
            data = base64.b64decode(json.loads(line)["b64"])
            outer = decode_envelope(data)
            fpm = decode_fpm(outer.payload)
            assert encode_envelope(msgspec.structs.replace(outer, payload=encode_fpm(fpm))) == data
            seen += 1
    assert seen == messages


def test_the_heartbeat_of_an_idle_engine_is_a_message_of_zeros() -> None:
    idle = decode_fpm(document(wall_time=0.0))
    assert idle.wall_time == 0.0
    assert idle.scheduled_requests == ScheduledRequests()


def test_an_unknown_key_in_the_envelope_is_ignored() -> None:
    assert decode_envelope(envelope(published_at_ns=1796086520190123456)).sequence == 0


def test_an_unknown_key_in_an_fpm_is_ignored() -> None:
    assert decode_fpm(document(added_later=[1, {"a": None}])).worker_id == "7"


def test_ids_and_counters_reach_to_the_end_of_64_bits() -> None:
    outer = decode_envelope(envelope(publisher_id=U64_MAX, sequence=U64_MAX))
    assert (outer.publisher_id, outer.sequence) == (U64_MAX, U64_MAX)
    fpm = decode_fpm(document(worker_id=str(U64_MAX), dp_rank=U64_MAX, counter_id=U64_MAX))
    assert (fpm.worker_id, fpm.dp_rank, fpm.counter_id) == (str(U64_MAX), U64_MAX, U64_MAX)
    assert decode_fpm(encode_fpm(fpm)) == fpm


def test_an_fpm_without_a_worker_id_is_refused() -> None:  # T17, dynamo#12591
    assert refusal(document(worker_id="")).reason == DeadLetterReason.EMPTY_WORKER_ID
    assert refusal(b"\x80").reason == DeadLetterReason.EMPTY_WORKER_ID


@pytest.mark.parametrize("version", [0, 2, 2**63])
def test_another_version_is_named_as_such(version: int) -> None:
    assert refusal(document(version=version)).reason == DeadLetterReason.UNSUPPORTED_VERSION


def test_another_version_is_named_as_such_though_its_fields_mean_something_else() -> None:
    assert refusal(document(version=2, wall_time={"prefill": 0.1})).reason == DeadLetterReason.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wall_time", NaN),
        ("wall_time", INF),
        ("wall_time", -INF),
        ("wall_time", -0.001),
        ("wall_time", "0.5"),
        ("wall_time", None),
        ("worker_id", 7),
        ("dp_rank", -1),
        ("counter_id", -1),
        ("counter_id", 1.5),
        ("counter_id", True),
        ("version", 1.0),
        ("scheduled_requests", []),
        ("scheduled_requests", {"sum_prefill_tokens": -1}),
        ("scheduled_requests", {"sum_prefill_tokens": 2**41}),
        ("scheduled_requests", {"var_prefill_length": NaN}),
        ("queued_requests", {"var_decode_kv_tokens": INF}),
        ("queued_requests", {"num_prefill_requests": 0.5}),
    ],
)
def test_absurd_numbers_and_other_types_are_undecodable(field: str, value: object) -> None:
    error = refusal(document(**{field: value}))
    assert error.reason == DeadLetterReason.UNDECODABLE
    assert f"`$.{field}" in str(error)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"garbage", b"\x87\xa7version", msgspec.msgpack.encode([1, "7", 0, 1, 0.5]), document() + b"\x00"],
)
def test_garbage_is_undecodable(payload: bytes) -> None:
    assert refusal(payload).reason == DeadLetterReason.UNDECODABLE


@pytest.mark.parametrize("payload", [b"\x91" * 300_000, b"\x81\xa1x" * 300_000, b"\x81\xa1x" + b"\x91" * 300_000])
def test_deep_nesting_is_undecodable(payload: bytes) -> None:
    assert refusal(payload).reason == DeadLetterReason.UNDECODABLE
    with pytest.raises(RecordError, match="event envelope"):
        decode_envelope(payload)


@pytest.mark.parametrize("byte", [b"\x00", b"\x80", b"\xa0", b"\xc0", b"\xdf", b"\xff"])
def test_ten_megabytes_of_one_byte_are_undecodable(byte: bytes) -> None:
    assert refusal(byte * 10_000_000).reason == DeadLetterReason.UNDECODABLE


@pytest.mark.parametrize("data", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"])
def test_an_announced_length_of_gigabytes_takes_no_memory(data: bytes) -> None:
    assert refusal(data).reason == DeadLetterReason.UNDECODABLE
    assert refusal(b"\x81\xa9worker_id" + data).reason == DeadLetterReason.UNDECODABLE


@pytest.mark.parametrize("name", ["publisher_id", "sequence", "published_at", "topic", "payload"])
def test_an_envelope_needs_all_its_keys(name: str) -> None:
    with pytest.raises(RecordError, match=f"`{name}`") as caught:
        decode_envelope(envelope(**{name: None}))
    assert caught.value.reason == DeadLetterReason.UNDECODABLE


def test_an_fpm_without_its_envelope_is_undecodable_as_one() -> None:
    with pytest.raises(RecordError, match="publisher_id"):
        decode_envelope(PAYLOAD)


def test_an_envelope_of_another_topic_is_refused() -> None:
    with pytest.raises(RecordError, match="kv_metrics") as caught:
        decode_envelope(envelope(topic="kv_metrics"))
    assert caught.value.reason == DeadLetterReason.WRONG_TOPIC
    with pytest.raises(RecordError) as caught:
        decode_envelope(envelope(topic="x" * 1_000_000))
    assert len(str(caught.value)) < 500


def test_an_envelope_as_an_array_is_refused() -> None:
    """Dynamo's subscriber would take it; no publisher sends it, and it leaves no room for a new field."""
    with pytest.raises(RecordError, match="Expected `object`, got `array`"):
        decode_envelope(msgspec.msgpack.encode([1, 2, 3, TOPIC, b""]))


def test_a_payload_that_is_no_byte_string_is_refused() -> None:
    with pytest.raises(RecordError, match=r"`\$.payload`"):
        decode_envelope(envelope(payload=[1, 2, 3]))


def test_a_publication_beyond_what_a_batch_can_say_is_refused() -> None:
    """One such message would make the whole batch unreadable."""
    with pytest.raises(RecordError, match=r"`\$.published_at`"):
        decode_envelope(envelope(published_at=U64_MAX))
