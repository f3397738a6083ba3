"""CloudEvents 1.0 in binary mode: the headers of a record on NATS and on Kafka, and the identity of each record.

Inside Headrace headers are in NATS spelling (``ce-`` names, percent-encoded values); the Kafka connector translates at
its border. Sources: CloudEvents core 1.0.2 and its NATS and Kafka protocol bindings.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from urllib.parse import quote, unquote
from zlib import crc32

from headrace.schemas.ack import DecisionAck
from headrace.schemas.base import Record, schema_of
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Decision
from headrace.schemas.engine_profiles import EngineProfiles
from headrace.schemas.errors import RecordError
from headrace.schemas.forecast_fit import ForecastFit
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import stream_of
from headrace.schemas.tick_report import TickReport
from headrace.schemas.traffic import TrafficWindow

SPEC_VERSION = "1.0"
CONTENT_TYPES = {"json": "application/json", "msgpack": "application/msgpack"}

_NATS_PREFIX = "ce-"
_KAFKA_PREFIX = "ce_"
_NATS_ONLY = "ce-datacontenttype"  # Kafka's binding has `content-type` in its place
_LAST_SECOND_OF_9999 = 253_402_300_799.0  # RFC 3339 ends there
# Printable ASCII but space, double quote and percent: section 3.1.3.2 of the NATS binding.
_SAFE_IN_HEADERS = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')


def headers_for(
    record: Record, *, source: str, record_id: str | None = None, time_s: float | None = None
) -> dict[str, str]:
    """The headers of a record, in NATS spelling.

    `source` names the process that speaks, as a URI reference: ``/headrace/planner``. `record_id` and `time_s`
    (seconds since the epoch) are the record's own where they are not given. ``ce-time`` is left out where RFC 3339
    cannot say it. Raises RecordError when `source` or `record_id` is empty: CloudEvents requires both.
    """
    identity = _identity(record) if record_id is None else record_id
    if not source or not identity:
        raise RecordError(f"headers of a {schema_of(record)}: source ({source!r}) and record id must not be empty")
    content_type = CONTENT_TYPES[stream_of(record).codec]
    attributes = {
        "specversion": SPEC_VERSION,
        "id": identity,
        "source": source,
        "type": schema_of(record),
        "subject": record.dgd,
        "datacontenttype": content_type,
    }
    time = rfc3339(event_time(record) if time_s is None else time_s)
    if time is not None:
        attributes["time"] = time
    headers = {_NATS_PREFIX + name: quote(value, safe=_SAFE_IN_HEADERS) for name, value in attributes.items()}
    headers["content-type"] = content_type  # where HTTP and the Go SDK look
    return headers


def to_kafka(headers: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Headers in Kafka spelling: ``ce_`` names, plain UTF-8 values. Other headers stay as they are."""
    return [
        (_KAFKA_PREFIX + name.removeprefix(_NATS_PREFIX), unquote(value).encode())
        if name.startswith(_NATS_PREFIX)
        else (name, value.encode())
        for name, value in headers.items()
        if name != _NATS_ONLY
    ]


def from_kafka(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """Headers in NATS spelling; the last of a repeated name wins, and bytes that are no UTF-8 become U+FFFD."""
    found: dict[str, str] = {}
    for name, raw in headers:
        value = (raw or b"").decode(errors="replace")
        if name.startswith(_KAFKA_PREFIX):
            found[_NATS_PREFIX + name.removeprefix(_KAFKA_PREFIX)] = quote(value, safe=_SAFE_IN_HEADERS)
        else:
            found[name] = value
    if "ce-specversion" in found and "content-type" in found:
        found[_NATS_ONLY] = quote(found["content-type"], safe=_SAFE_IN_HEADERS)
    return found


def rfc3339(time_s: float) -> str | None:
    """Seconds since the epoch as UTC with microseconds; None beyond the year 9999 and for what is no number."""
    if not 0.0 <= time_s <= _LAST_SECOND_OF_9999:
        return None
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def record_id(record: Record) -> str:
    """The identity of a record on its stream: equal for a repeated record, different for any other.

    Printable ASCII, so that it can be a header as it is (`Nats-Msg-Id`, `ce-id`). Parts are separated by colons.
    """
    return ":".join(quote(str(part), safe="/._-~@+") for part in (record.dgd, *_parts(record)))


_identity = record_id  # the name that `headers_for` shadows


def _parts(record: Record) -> tuple[object, ...]:
    match record:
        case Decision():
            return record.epoch, record.decision_id
        case DecisionAck():  # with its time: several `accepted` acks of one decision tell its progress
            return record.epoch, record.decision_id, record.executor, record.status, _us(record.at)
        case TrafficWindow():
            return record.source, record.window_id
        case FpmBatch():
            return record.role, record.source, *_span(record)
        case WorkerInventory():
            return record.source, _us(record.observed_at)
        case ConfigRevision():  # with its time: two operators may write the same revision, and both must be seen
            return record.revision, _us(record.at)
        case EngineProfiles():
            return (_us(record.at),)
        case Prediction():
            return record.source, record.prediction_id
        case ForecastFit():
            return (record.fit_id,)
        case Proposal():
            return record.source, record.proposal_id
        case TickReport():
            return record.epoch, record.tick
        case DeadLetter():
            return record.reader, record.stream, *_place(record)
        case PlannerState():
            return record.epoch, _us(record.taken_at)
    raise RecordError(f"{schema_of(record)} has no identity: add its key to headrace.schemas.cloudevents")


def _span(batch: FpmBatch) -> tuple[object, ...]:
    if not batch.items:
        return ("empty", _us(batch.received_at))
    first, last = batch.items[0], batch.items[-1]
    return (first.publisher_id, first.sequence, last.publisher_id, last.sequence, len(batch.items))


def _place(letter: DeadLetter) -> tuple[object, ...]:
    """Where the bad bytes lie. What has no position is told apart by its time and content."""
    place: tuple[object, ...] = (letter.position,)
    if letter.position is None:
        place = (_us(letter.at), f"{crc32(letter.data):08x}")
    return place if letter.item is None else (*place, letter.item)


def _us(time_s: float) -> int:
    return round(time_s * 1e6)


def event_time(record: Record) -> float:
    """When what the record says was true, in seconds since the epoch, as the record itself tells.

    A traffic window's is its end; a batch of FPMs' is the publication of its newest item.
    """
    match record:
        case Decision() | Proposal():
            return record.issued_at
        case DecisionAck() | ConfigRevision() | EngineProfiles() | TickReport() | DeadLetter():
            return record.at
        case TrafficWindow():
            return record.end
        case FpmBatch():
            return max((item.published_at for item in record.items), default=record.received_at)
        case WorkerInventory():
            return record.observed_at
        case Prediction() | ForecastFit():
            return record.made_at
        case PlannerState():
            return record.taken_at
    raise RecordError(f"{schema_of(record)} has no event time: add it to headrace.schemas.cloudevents")
