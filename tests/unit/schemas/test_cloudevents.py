"""Headers that CloudEvents tooling understands, and one identity for each record."""

from datetime import UTC, datetime

import msgspec
import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat

from headrace.schemas.base import Record, schema_of
from headrace.schemas.cloudevents import event_time, from_kafka, headers_for, record_id, rfc3339, to_kafka
from headrace.schemas.codec import encode
from headrace.schemas.errors import RecordError
from headrace.schemas.examples import DEAD_LETTER, DECISION, DECISION_ACK, EXAMPLES, FPM_BATCH, TRAFFIC_WINDOW
from headrace.schemas.streams import STREAMS

JSON_STREAMS = [name for name, stream in STREAMS.items() if stream.codec == "json"]
every_record = pytest.mark.parametrize("record", EXAMPLES.values(), ids=EXAMPLES.keys())


def test_a_decision_has_all_attributes() -> None:
    assert headers_for(DECISION, source="/headrace/planner") == {
        "ce-specversion": "1.0",
        "ce-id": "ml/llama-70b:3:41",
        "ce-source": "/headrace/planner",
        "ce-type": "headrace.decision.v1",
        "ce-subject": "ml/llama-70b",
        "ce-time": "2026-12-01T00:55:20.000000Z",
        "ce-datacontenttype": "application/json",
        "content-type": "application/json",
    }


@pytest.mark.parametrize("stream", JSON_STREAMS)
def test_the_cloudevents_sdk_reads_our_headers(stream: str) -> None:
    """The SDK has no NATS binding; HTTP's has the same names and the same percent-encoding."""
    record = EXAMPLES[stream]
    headers = headers_for(record, source="/headrace/test")
    del headers["ce-datacontenttype"]  # in HTTP this is `content-type` alone
    event = http.from_binary(http.HTTPMessage(headers=headers, body=encode(record)), JSONFormat())
    assert event.get_id() == record_id(record)
    assert event.get_type() == schema_of(record)
    assert event.get_subject() == record.dgd
    assert event.get_time() == datetime.fromtimestamp(event_time(record), tz=UTC)
    assert event.get_data() == msgspec.json.decode(encode(record))


@pytest.mark.parametrize("stream", JSON_STREAMS)
def test_the_cloudevents_sdk_reads_our_kafka_headers(stream: str) -> None:
    record = EXAMPLES[stream]
    headers = dict(to_kafka(headers_for(record, source="/headrace/test")))
    event = kafka.from_binary(kafka.KafkaMessage(headers=headers, key=None, value=encode(record)), JSONFormat())
    assert event.get_id() == record_id(record)
    assert event.get_type() == schema_of(record)
    assert event.get_datacontenttype() == "application/json"
    assert set(event.get_attributes()) == {"specversion", "id", "source", "type", "subject", "time", "datacontenttype"}


def test_a_batch_of_fpms_says_that_it_is_msgpack() -> None:
    assert headers_for(FPM_BATCH, source="/x")["content-type"] == "application/msgpack"


@every_record
def test_headers_come_back_from_kafka_as_they_were(record: Record) -> None:
    headers = headers_for(record, source="/headrace/with blank, %, é and 😀")
    assert from_kafka(to_kafka(headers)) == headers


def test_foreign_kafka_headers_stay_as_they_are() -> None:
    assert from_kafka([("traceparent", b"00-1"), ("empty", None), ("bad", b"\xff")]) == {
        "traceparent": "00-1",
        "empty": "",
        "bad": "�",
    }


def test_a_header_value_cannot_start_another_header() -> None:
    headers = headers_for(DECISION, source="/x\r\nNats-Rollup: all")
    assert headers["ce-source"] == "/x%0D%0ANats-Rollup:%20all"


@every_record
def test_every_record_has_an_identity_that_can_be_a_header(record: Record) -> None:
    identity = record_id(record)
    assert identity.isascii()
    assert identity.isprintable()
    assert " " not in identity
    assert record_id(msgspec.structs.replace(record)) == identity
    assert record_id(msgspec.structs.replace(record, dgd="ml/other")) != identity


def test_a_separator_inside_a_part_makes_no_second_identity() -> None:
    one = msgspec.structs.replace(TRAFFIC_WINDOW, source="a:b", window_id="c")
    other = msgspec.structs.replace(TRAFFIC_WINDOW, source="a", window_id="b:c")
    assert record_id(one) != record_id(other)


def test_each_progress_report_of_an_executor_is_a_record_of_its_own() -> None:
    later = msgspec.structs.replace(DECISION_ACK, at=DECISION_ACK.at + 1)
    assert record_id(later) != record_id(DECISION_ACK)


def test_a_batch_is_known_by_its_first_and_last_message() -> None:
    shorter = msgspec.structs.replace(FPM_BATCH, items=FPM_BATCH.items[:1])
    assert record_id(shorter) != record_id(FPM_BATCH)
    empty = msgspec.structs.replace(FPM_BATCH, items=[])
    assert record_id(empty) == "ml/llama-70b:decode:dynamo-events:empty:1796086520200000"
    assert event_time(empty) == FPM_BATCH.received_at


def test_bad_bytes_without_a_position_are_told_apart_by_time_and_content() -> None:
    first = msgspec.structs.replace(DEAD_LETTER, position=None, item=None, data=b"a")
    second = msgspec.structs.replace(first, data=b"b")
    assert record_id(first) != record_id(second)
    assert record_id(msgspec.structs.replace(DEAD_LETTER, item=4)) != record_id(DEAD_LETTER)


def test_the_event_time_of_a_window_is_its_end() -> None:
    assert event_time(TRAFFIC_WINDOW) == TRAFFIC_WINDOW.end


@pytest.mark.parametrize("source", ["", None])
def test_headers_without_a_source_or_an_identity_are_refused(source: str | None) -> None:
    with pytest.raises(RecordError, match="must not be empty"):
        headers_for(DECISION, source=source or "", record_id="x")
    with pytest.raises(RecordError, match="must not be empty"):
        headers_for(DECISION, source="/x", record_id="")


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (1796086520.19, "2026-12-01T00:55:20.190000Z"),
        (253402300799.0, "9999-12-31T23:59:59.000000Z"),
        (253402300800.0, None),
        (1e12, None),
        (-1.0, None),
        (float("nan"), None),
        (float("inf"), None),
    ],
)
def test_time_is_rfc_3339_or_left_out(time_s: float, text: str | None) -> None:
    assert rfc3339(time_s) == text
    assert headers_for(DECISION, source="/x", time_s=time_s).get("ce-time") == text


class Stranger(Record, frozen=True, kw_only=True, tag="headrace.stranger.v1"):
    pass


def test_a_record_that_nobody_gave_an_identity_is_refused() -> None:
    with pytest.raises(RecordError, match="no identity"):
        record_id(Stranger(dgd="a/b"))
    with pytest.raises(RecordError, match="no event time"):
        event_time(Stranger(dgd="a/b"))
