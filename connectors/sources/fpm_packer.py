"""Packs the FPMs of Dynamo's event plane into batches per DGD and role. Pure: the source brings messages and the time.

The payloads are not decoded here: the batch carries the engines' own bytes, and the planner decodes them. What is not
even an envelope becomes a dead letter. The path of one message is short, because tens come per second and engine.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.schemas.base import AGG, DECODE, PREFILL, DgdName, Role
from headrace.schemas.deadletter import DeadLetter, cut
from headrace.schemas.errors import ConfigError, RecordError
from headrace.schemas.fpm import TOPIC, FpmEnvelope, decode_envelope
from headrace.schemas.fpm_batch import FpmBatch, FpmItem

LARGEST_PAYLOAD = 64 * 1024  # bytes; a real one has some 430
LARGEST_BATCH = 512 * 1024  # bytes of payload; NATS refuses messages over 1 MiB by default
MANY_ITEMS = 1000  # in a batch
MANY_PUBLISHERS = 50_000  # remembered at most: more than any fleet, less than a flood of made-up ids
MANY_SUBJECTS = 10_000

_SUBJECT = re.compile(r"^namespace\.([^.]+)\.component\.([^.]+)\.endpoint\.[^.]+\." + re.escape(TOPIC) + "$")
_decode = msgspec.msgpack.Decoder(FpmEnvelope).decode

COMPONENTS: dict[str, dict[str, Role]] = {  # Dynamo's component names in each mode of a planner
    "disagg": {"prefill": PREFILL, "backend": DECODE},
    "prefill": {"prefill": PREFILL},
    "decode": {"backend": DECODE},
    "agg": {"backend": AGG},
}


@dataclass(frozen=True, slots=True)
class Route:
    """Which DGD the components of one Dynamo namespace belong to, and the role of each component."""

    namespace: str
    dgd: str
    components: Mapping[str, Role] = field(default_factory=lambda: COMPONENTS["disagg"])


@dataclass(slots=True)
class FpmCounters:
    """What came in since the source began, in FPMs."""

    received: int = 0
    bad: int = 0  # dead-lettered
    unmapped: int = 0  # of a namespace or component that no route names
    missing: int = 0  # gaps in the sequences of publishers: lost on the way here
    repeated: int = 0  # sequence not above the last one: passed on all the same, the planner counts by counter_id


class Bucket:
    """The FPMs of one DGD and role that wait for their batch."""

    __slots__ = ("dgd", "items", "received_at", "role", "size")

    def __init__(self, dgd: str, role: Role) -> None:
        self.dgd = dgd
        self.role = role
        self.items: list[FpmItem] = []
        self.size = 0  # bytes of payload
        self.received_at = 0.0  # s, of the newest item


class FpmPacker:
    """Takes messages in with :meth:`add`, gives batches out with :meth:`take`."""

    def __init__(self, routes: Iterable[Route], *, source: str, max_items: int = MANY_ITEMS) -> None:
        """Raises ConfigError when two routes claim the same component of a namespace, or when there is none."""
        self.source = source
        self.counters = FpmCounters()
        self.ready: list[FpmBatch] = []  # closed because they were full
        self.names_seen: dict[tuple[str, str], None] = {}  # unmapped (namespace, component), in order of appearance
        self._max_items = max_items
        self._routed = _buckets(routes, source)
        self._buckets = list(dict.fromkeys(self._routed.values()))
        self._by_subject: dict[str, Bucket | None] = {}
        self._sequences: dict[int, int] = {}  # publisher -> last sequence
        self._older_sequences: dict[int, int] = {}

    @property
    def known_names(self) -> list[tuple[str, str]]:
        """The (namespace, component) pairs that are mapped."""
        return sorted(self._routed)

    def add(self, subject: str, data: bytes, now: float) -> DeadLetter | None:
        """Take one message in, received at `now` (s). Returns a dead letter when it is no FPM envelope."""
        counters = self.counters
        counters.received += 1
        try:
            bucket = self._by_subject[subject]
        except KeyError:
            bucket = self._lookup(subject)
        if bucket is None:
            counters.unmapped += 1
            return None
        try:
            envelope = _decode(data)
        except (msgspec.DecodeError, RecursionError):
            return self._dead(bucket, subject, data, now)
        payload = envelope.payload
        size = len(payload)
        if envelope.topic != TOPIC or size > LARGEST_PAYLOAD:
            return self._dead(bucket, subject, data, now)
        publisher, sequence = envelope.publisher_id, envelope.sequence
        last = self._sequences.get(publisher)
        if last is None:
            last = self._older_sequences.get(publisher, sequence - 1)
        if sequence != last + 1:
            self._note_jump(last, sequence)
        self._sequences[publisher] = sequence
        items = bucket.items
        items.append(FpmItem(envelope.published_at / 1000.0, publisher, sequence, payload))
        bucket.size += size
        bucket.received_at = now
        if len(items) >= self._max_items or bucket.size > LARGEST_BATCH:
            self._close(bucket)
        return None

    def take(self) -> list[FpmBatch]:
        """The batches of what has come since the last call."""
        for bucket in self._buckets:
            if bucket.items:
                self._close(bucket)
        batches, self.ready = self.ready, []
        return batches

    def forget(self) -> None:
        """Forget the publishers that have been silent since the last call. Call it every few minutes."""
        self._older_sequences, self._sequences = self._sequences, {}
        self._by_subject = {subject: bucket for subject, bucket in self._by_subject.items() if bucket is not None}

    def _lookup(self, subject: str) -> Bucket | None:
        found = _SUBJECT.match(subject)
        if found is None:
            return None  # another topic of the event plane
        name = (found[1], found[2])
        bucket = self._routed.get(name)
        if len(self._by_subject) < MANY_SUBJECTS:
            self._by_subject[subject] = bucket
        if bucket is None and len(self.names_seen) < MANY_SUBJECTS:
            self.names_seen.setdefault(name)
        return bucket

    def _note_jump(self, last: int, sequence: int) -> None:
        if sequence > last:
            self.counters.missing += sequence - last - 1
        else:
            self.counters.repeated += 1

    def _close(self, bucket: Bucket) -> None:
        self.ready.append(
            FpmBatch(
                dgd=bucket.dgd,
                role=bucket.role,
                source=self.source,
                received_at=bucket.received_at,
                items=bucket.items,
            )
        )
        bucket.items, bucket.size = [], 0
        if len(self._sequences) > MANY_PUBLISHERS:
            self.forget()

    def _dead(self, bucket: Bucket, subject: str, data: bytes, now: float) -> DeadLetter:
        self.counters.bad += 1
        error = _why_dead(data)
        return DeadLetter(
            dgd=bucket.dgd,
            reason=error.reason,
            message=str(error),
            reader=self.source,
            stream=subject,
            position=None,
            at=now,
            data=cut(data),
            size=len(data),
        )


def _buckets(routes: Iterable[Route], source: str) -> dict[tuple[str, str], Bucket]:
    """(namespace, component) -> its bucket; components of one DGD and role share one."""
    routed: dict[tuple[str, str], Bucket] = {}
    buckets: dict[tuple[str, Role], Bucket] = {}
    for route in routes:
        try:
            dgd = msgspec.convert(route.dgd, DgdName)
        except msgspec.ValidationError as e:
            raise ConfigError(f"source {source!r}: {route.dgd!r} is no DGD; write it as namespace/name") from e
        for component, role in route.components.items():
            name = (route.namespace, component)
            if name in routed:
                raise ConfigError(f"component {component!r} of namespace {route.namespace!r} has two routes: keep one")
            routed[name] = buckets.setdefault((dgd, role), Bucket(dgd, role))
    if not routed:
        raise ConfigError(f"source {source!r} maps no Dynamo namespace to a DGD: give one route or more")
    return routed


def _why_dead(data: bytes) -> RecordError:
    try:
        envelope = decode_envelope(data)
    except RecordError as e:
        return e
    return RecordError(
        f"FPM of {len(envelope.payload)} bytes: no engine writes more than {LARGEST_PAYLOAD}", reason="too_large"
    )
