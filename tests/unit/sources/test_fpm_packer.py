"""Packing FPMs into batches: nothing lost, nothing decoded, bad envelopes set aside, memory bounded."""

import msgspec
import pytest

from headrace.connectors.sources import fpm_packer
from headrace.connectors.sources.fpm_packer import COMPONENTS, FpmPacker, Route
from headrace.schemas.codec import decode, encode
from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import TOPIC, Fpm, FpmEnvelope, encode_envelope, encode_fpm

DGD = "ml/llama"
ROUTE = Route("dynamo", DGD)


def subject(component: str = "backend", namespace: str = "dynamo", topic: str = TOPIC) -> str:
    return f"namespace.{namespace}.component.{component}.endpoint.generate.{topic}"


def envelope(
    sequence: int = 0, publisher: int = 5, payload: bytes = b"\x80", *, topic: str = TOPIC, at: int = 1000
) -> bytes:
    return encode_envelope(FpmEnvelope(publisher, sequence, at, topic, payload))


def test_fpms_of_a_role_become_one_batch_in_their_order() -> None:
    packer = FpmPacker([ROUTE], source="s")
    payloads = [encode_fpm(Fpm(worker_id="9", counter_id=n)) for n in range(3)]
    for n, payload in enumerate(payloads):
        assert packer.add(subject(), envelope(n, payload=payload, at=1000 + n), now=2.0 + n) is None
    [batch] = packer.take()
    assert (batch.dgd, batch.role, batch.source, batch.received_at) == (DGD, "decode", "s", 4.0)
    assert [item.payload for item in batch.items] == payloads
    assert [(i.publisher_id, i.sequence, i.published_at) for i in batch.items] == [
        (5, 0, 1.0),
        (5, 1, 1.001),
        (5, 2, 1.002),
    ]
    assert decode("fpm", encode(batch)) == batch


def test_what_was_taken_is_not_given_again() -> None:
    packer = FpmPacker([ROUTE], source="s")
    packer.add(subject(), envelope(), 1.0)
    assert len(packer.take()) == 1
    assert packer.take() == []


def test_components_map_to_roles() -> None:
    packer = FpmPacker([ROUTE], source="s")
    packer.add(subject("prefill"), envelope(0, 1), 1.0)
    packer.add(subject("backend"), envelope(0, 2), 1.0)
    assert sorted(batch.role for batch in packer.take()) == ["decode", "prefill"]


def test_in_agg_mode_the_backend_is_aggregated() -> None:
    packer = FpmPacker([Route("dynamo", DGD, COMPONENTS["agg"])], source="s")
    packer.add(subject("backend"), envelope(), 1.0)
    assert [batch.role for batch in packer.take()] == ["agg"]


def test_namespaces_map_to_their_dgds() -> None:
    packer = FpmPacker([ROUTE, Route("other-ns", "ml/qwen")], source="s")
    packer.add(subject(), envelope(0, 1), 1.0)
    packer.add(subject(namespace="other-ns"), envelope(0, 2), 1.0)
    assert sorted(batch.dgd for batch in packer.take()) == ["ml/llama", "ml/qwen"]


def test_two_components_of_one_role_share_a_batch() -> None:
    packer = FpmPacker([Route("dynamo", DGD, {"backend": "decode", "backend-b": "decode"})], source="s")
    packer.add(subject("backend"), envelope(0, 1), 1.0)
    packer.add(subject("backend-b"), envelope(0, 2), 1.0)
    [batch] = packer.take()
    assert len(batch.items) == 2


def test_a_component_that_nobody_mapped_is_counted_and_named() -> None:  # row 62, dynamo#3106
    packer = FpmPacker([ROUTE], source="s")
    for n in range(3):
        assert packer.add(subject("vllmworker"), envelope(n), 1.0) is None
    assert packer.take() == []
    assert packer.counters.unmapped == 3
    assert list(packer.names_seen) == [("dynamo", "vllmworker")]
    assert packer.known_names == [("dynamo", "backend"), ("dynamo", "prefill")]


@pytest.mark.parametrize("topic", ["kv_metrics", "kv-events", "forward-pass-metrics-2"])
def test_other_topics_of_the_event_plane_are_no_fpms(topic: str) -> None:
    packer = FpmPacker([ROUTE], source="s")
    assert packer.add(subject(topic=topic), envelope(), 1.0) is None
    assert (packer.take(), packer.counters.unmapped, dict(packer.names_seen)) == ([], 1, {})


POSITIONAL = msgspec.msgpack.encode([5, 0, 1000, TOPIC, b"\x80"])
BAD = {
    "garbage": (b"\xc1\xff\x00garbage", "undecodable"),
    "empty": (b"", "undecodable"),
    "a naked FPM": (encode_fpm(Fpm(worker_id="9")), "undecodable"),
    "positional": (POSITIONAL, "undecodable"),
    "payload of integers": (
        msgspec.msgpack.encode({**msgspec.msgpack.decode(envelope()), "payload": [1, 2]}),
        "undecodable",
    ),
    "another topic": (envelope(topic="kv_metrics"), "wrong_topic"),
    "negative sequence": (
        msgspec.msgpack.encode({**msgspec.msgpack.decode(envelope()), "sequence": -1}),
        "undecodable",
    ),
    "a time beyond all time": (envelope(at=10**16), "undecodable"),
    "a payload that no engine writes": (envelope(payload=b"x" * 70_000), "too_large"),
    "nested without end": (b"\x91" * 5000, "undecodable"),
}


@pytest.mark.parametrize(("data", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_envelope_is_a_dead_letter_and_the_next_one_is_read(data: bytes, reason: str) -> None:
    packer = FpmPacker([ROUTE], source="s")
    letter = packer.add(subject(), data, 7.0)
    assert letter is not None
    assert (letter.reason, letter.stream, letter.reader, letter.dgd) == (reason, subject(), "s", DGD)
    assert (letter.size, letter.at, letter.data) == (len(data), 7.0, data[: 64 * 1024])
    assert decode("deadletters", encode(letter)) == letter
    packer.add(subject(), envelope(), 8.0)
    assert [len(batch.items) for batch in packer.take()] == [1]
    assert packer.counters.bad == 1


def test_an_envelope_with_a_field_more_is_read() -> None:
    data = msgspec.msgpack.encode({**msgspec.msgpack.decode(envelope()), "published_at_ns": 5})
    packer = FpmPacker([ROUTE], source="s")
    assert packer.add(subject(), data, 1.0) is None
    assert len(packer.take()) == 1


def test_a_payload_is_passed_on_whatever_is_in_it() -> None:
    """Undecodable FPMs are the planner's dead letters, not the source's."""
    packer = FpmPacker([ROUTE], source="s")
    assert packer.add(subject(), envelope(payload=b"\xc1garbage"), 1.0) is None
    [batch] = packer.take()
    assert batch.items[0].payload == b"\xc1garbage"


def test_a_gap_in_a_publishers_sequence_is_counted() -> None:
    packer = FpmPacker([ROUTE], source="s")
    for sequence in (0, 1, 5, 6):
        packer.add(subject(), envelope(sequence), 1.0)
    assert (packer.counters.missing, packer.counters.repeated) == (3, 0)


def test_a_publisher_may_begin_anywhere() -> None:
    packer = FpmPacker([ROUTE], source="s")
    packer.add(subject(), envelope(900), 1.0)
    assert packer.counters.missing == 0


def test_a_repeated_sequence_is_counted_and_passed_on() -> None:
    packer = FpmPacker([ROUTE], source="s")
    for sequence in (3, 3):
        packer.add(subject(), envelope(sequence), 1.0)
    [batch] = packer.take()
    assert (packer.counters.repeated, len(batch.items)) == (1, 2)


def test_publishers_that_are_silent_for_two_periods_are_forgotten() -> None:
    packer = FpmPacker([ROUTE], source="s")
    packer.add(subject(), envelope(1, publisher=1), 1.0)
    packer.forget()
    packer.add(subject(), envelope(3, publisher=1), 1.0)  # still known: 2 is missing
    assert packer.counters.missing == 1
    packer.forget()
    packer.forget()
    packer.add(subject(), envelope(9, publisher=1), 1.0)  # no longer known
    assert packer.counters.missing == 1


def test_a_flood_of_made_up_publishers_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fpm_packer, "MANY_PUBLISHERS", 100)
    packer = FpmPacker([ROUTE], source="s")
    for n in range(5000):
        packer.add(subject(), envelope(0, publisher=n), 1.0)
        packer.take()
    assert len(packer._sequences) + len(packer._older_sequences) <= 202


def test_a_flood_of_made_up_names_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fpm_packer, "MANY_SUBJECTS", 100)
    packer = FpmPacker([ROUTE], source="s")
    for n in range(500):
        packer.add(subject(f"c{n}"), envelope(), 1.0)
    assert len(packer.names_seen) == 100
    assert len(packer._by_subject) == 100
    assert packer.counters.unmapped == 500


def test_a_batch_is_closed_when_it_has_enough_items() -> None:
    packer = FpmPacker([ROUTE], source="s", max_items=10)
    for n in range(25):
        packer.add(subject(), envelope(n), 1.0)
    assert [len(batch.items) for batch in packer.ready] == [10, 10]
    assert [len(batch.items) for batch in packer.take()] == [10, 10, 5]


def test_a_batch_never_outgrows_a_message_of_the_bus() -> None:
    packer = FpmPacker([ROUTE], source="s")
    for n in range(40):
        packer.add(subject(), envelope(n, payload=b"x" * 60_000), 1.0)
    batches = packer.take()
    assert sum(len(batch.items) for batch in batches) == 40
    assert all(len(encode(batch)) < 1024 * 1024 for batch in batches)


def test_two_routes_for_one_component_are_refused() -> None:
    with pytest.raises(ConfigError, match="two routes"):
        FpmPacker([ROUTE, Route("dynamo", "ml/qwen")], source="s")


def test_a_source_without_routes_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Dynamo namespace"):
        FpmPacker([], source="s")


def test_a_route_to_what_is_no_dgd_is_refused() -> None:
    with pytest.raises(ConfigError, match="namespace/name"):
        FpmPacker([Route("dynamo", "llama")], source="s")
