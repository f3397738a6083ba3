"""Whatever bytes arrive, a reader gets a record or a RecordError, and a record always comes back as it was."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.base import Record
from headrace.schemas.cloudevents import event_time, from_kafka, headers_for, record_id, to_kafka
from headrace.schemas.codec import decode, encode
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.errors import RecordError
from headrace.schemas.examples import EXAMPLES, TRAFFIC_WINDOW
from headrace.schemas.fpm import (
    Fpm,
    FpmEnvelope,
    QueuedRequests,
    ScheduledRequests,
    decode_envelope,
    decode_fpm,
    encode_envelope,
    encode_fpm,
)
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.reasons import DeadLetterReason
from headrace.schemas.streams import STREAMS

REASONS = set(DeadLetterReason)

counts = st.integers(0, 2**40)
serials = st.integers(0, 2**63 - 1)
unsigned = st.integers(0, 2**64 - 1)
amounts = st.floats(0.0, 1e15)
seconds = st.floats(0.0, 1e12)
roles = st.sampled_from(["prefill", "decode", "agg"]) | st.text(min_size=1, max_size=20)
parts = st.from_regex(r"[A-Za-z0-9._:é-]+", fullmatch=True).filter(lambda part: len(part) < 250)
dgds = st.builds("{}/{}".format, parts, parts)
targets = st.dictionaries(roles, counts, max_size=4)

fpms = st.builds(
    Fpm,
    worker_id=unsigned.map(str),
    dp_rank=unsigned,
    counter_id=unsigned,
    wall_time=seconds,
    scheduled_requests=st.builds(ScheduledRequests, counts, counts, amounts, counts, counts, counts, amounts),
    queued_requests=st.builds(QueuedRequests, counts, counts, amounts, counts, counts, amounts),
)
envelopes = st.builds(
    FpmEnvelope,
    publisher_id=unsigned,
    sequence=unsigned,
    published_at=st.integers(0, 10**15),
    topic=st.just("forward-pass-metrics"),
    payload=fpms.map(encode_fpm) | st.binary(max_size=200),
)
decisions = st.builds(
    Decision,
    dgd=dgds,
    epoch=serials,
    decision_id=serials,
    issued_at=seconds,
    expires_at=seconds,
    targets=targets,
    previous=targets,
    reasons=st.dictionaries(roles, st.text(max_size=20), max_size=3),
    causes=st.builds(Causes, tick=serials, prediction=st.none() | st.text(max_size=20)),
    advisory=st.booleans(),
)
batches = st.builds(
    FpmBatch,
    dgd=dgds,
    role=roles,
    source=st.text(min_size=1, max_size=20),
    received_at=seconds,
    items=st.lists(st.builds(FpmItem, seconds, unsigned, unsigned, st.binary(max_size=50)), max_size=5),
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=10)
    | st.binary(max_size=10)
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def outcome(read: Any, *arguments: Any) -> object:
    """What a reader returns, or the RecordError that it raises; anything else is a failure of the test."""
    try:
        return read(*arguments)
    except RecordError as e:
        error = e
    assert error.reason in REASONS
    assert 0 < len(str(error)) < 1000
    return error


def damaged(data: bytes, at: int, bit: int, cut: int) -> bytes:
    """Bytes with one bit turned and the end cut off."""
    turned = bytearray(data)
    turned[at % len(data)] ^= 1 << bit
    return bytes(turned[: len(turned) - cut % len(data)])


@given(data=st.binary(max_size=400))
def test_random_bytes_are_refused_by_every_reader(data: bytes) -> None:
    assert isinstance(outcome(decode_fpm, data), RecordError)
    assert isinstance(outcome(decode_envelope, data), RecordError)
    for stream in STREAMS:
        assert isinstance(outcome(decode, stream, data), RecordError)


@given(tree=trees)
def test_any_msgpack_document_is_an_fpm_or_refused(tree: object) -> None:
    data = msgspec.msgpack.encode(tree)
    assert isinstance(outcome(decode_fpm, data), Fpm | RecordError)
    assert isinstance(outcome(decode_envelope, data), FpmEnvelope | RecordError)


@pytest.mark.parametrize("stream", STREAMS)
@given(name=st.integers(0, 30), value=trees)
def test_any_value_in_any_field_gives_a_record_or_a_refusal(stream: str, name: int, value: object) -> None:
    codec = msgspec.json if STREAMS[stream].codec == "json" else msgspec.msgpack
    tree = codec.decode(encode(EXAMPLES[stream]))
    tree[list(tree)[name % len(tree)]] = value
    found = outcome(decode, stream, codec.encode(tree))
    if isinstance(found, Record):
        assert decode(stream, encode(found)) == found


@pytest.mark.parametrize("stream", STREAMS)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.integers(0, 3))
def test_a_damaged_record_is_read_as_some_record_or_refused(stream: str, at: int, bit: int, cut: int) -> None:
    found = outcome(decode, stream, damaged(encode(EXAMPLES[stream]), at, bit, cut))
    assert isinstance(found, RecordError | STREAMS[stream].record)


@given(fpm=fpms, at=st.integers(0, 1000), bit=st.integers(0, 7), cut=st.integers(0, 3))
def test_a_damaged_fpm_is_read_as_some_fpm_or_refused(fpm: Fpm, at: int, bit: int, cut: int) -> None:
    found = outcome(decode_fpm, damaged(encode_fpm(fpm), at, bit, cut))
    if isinstance(found, Fpm):
        assert found.wall_time >= 0.0
        assert found.scheduled_requests.sum_prefill_tokens >= 0


@given(fpm=fpms)
def test_an_fpm_comes_back_as_it_was(fpm: Fpm) -> None:
    assert decode_fpm(encode_fpm(fpm)) == fpm


@given(envelope=envelopes)
def test_an_envelope_comes_back_as_it_was(envelope: FpmEnvelope) -> None:
    assert decode_envelope(encode_envelope(envelope)) == envelope


@given(record=decisions | batches)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    stream = "decisions" if isinstance(record, Decision) else "fpm"
    data = encode(record)
    assert decode(stream, data) == record
    assert encode(decode(stream, data)) == data


@given(record=decisions | batches, source=st.text(min_size=1, max_size=30))
def test_headers_are_printable_and_come_back_from_kafka(record: Record, source: str) -> None:
    headers = headers_for(record, source=source)
    assert all(value.isascii() and value.isprintable() and " " not in value for value in headers.values())
    assert from_kafka(to_kafka(headers)) == headers


tricky = st.sampled_from(["a", "b", "a:b", ":", "::", "%3A", "a%3Ab", "a/b", "/", " ", "é"])


@given(one=st.tuples(tricky, tricky), other=st.tuples(tricky, tricky))
def test_two_windows_have_one_identity_exactly_where_their_source_and_id_are_one(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    first, second = (
        record_id(msgspec.structs.replace(TRAFFIC_WINDOW, source=source, window_id=window_id))
        for source, window_id in (one, other)
    )
    assert (first == second) == (one == other)


@given(record=decisions | batches)
def test_the_event_time_of_a_record_is_one_of_its_own_times(record: Record) -> None:
    if isinstance(record, FpmBatch):
        assert event_time(record) in {record.received_at, *(item.published_at for item in record.items)}
    else:
        assert event_time(record) == msgspec.structs.asdict(record)["issued_at"]
