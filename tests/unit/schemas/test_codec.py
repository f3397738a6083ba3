"""Bytes to records and back: what is ignored, what is refused, and with which words."""

from typing import Any

import msgspec
import pytest

from headrace.schemas.base import is_dgd, schema_of
from headrace.schemas.codec import decode, encode, plain
from headrace.schemas.errors import RecordError
from headrace.schemas.examples import EXAMPLES, FPM_BATCH
from headrace.schemas.reasons import DeadLetterReason
from headrace.schemas.streams import STREAMS

Json = dict[str, Any]
every_stream = pytest.mark.parametrize("stream", STREAMS)


def repack(stream: str, tree: Json) -> bytes:
    return (msgspec.json.encode if STREAMS[stream].codec == "json" else msgspec.msgpack.encode)(tree)


def unpack(stream: str) -> Json:
    data = encode(EXAMPLES[stream])
    tree: Json = (msgspec.json.decode if STREAMS[stream].codec == "json" else msgspec.msgpack.decode)(data)
    return tree


def refusal(stream: str, data: bytes) -> RecordError:
    with pytest.raises(RecordError) as caught:
        decode(stream, data)
    return caught.value


@every_stream
def test_a_record_comes_back_as_it_was_and_gives_the_same_bytes(stream: str) -> None:
    data = encode(EXAMPLES[stream])
    assert decode(stream, data) == EXAMPLES[stream]
    assert encode(decode(STREAMS[stream], data)) == data


@every_stream
def test_the_order_of_keys_in_a_map_does_not_show_in_the_bytes(stream: str) -> None:
    def turned(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: turned(node[key]) for key in reversed(node)}
        return [turned(item) for item in node] if isinstance(node, list) else node

    assert encode(decode(stream, repack(stream, turned(unpack(stream))))) == encode(EXAMPLES[stream])


@every_stream
def test_unknown_fields_are_ignored(stream: str) -> None:
    tree = unpack(stream) | {"added_later": {"deep": [1, None]}, "x": float(1)}
    assert decode(stream, repack(stream, tree)) == EXAMPLES[stream]


def test_unknown_fields_inside_a_record_are_ignored() -> None:
    tree = unpack("decisions")
    tree["causes"]["added_later"] = 1
    assert decode("decisions", repack("decisions", tree)) == EXAMPLES["decisions"]


def test_a_longer_item_of_a_batch_is_read_as_far_as_it_is_known() -> None:
    tree = unpack("fpm")
    tree["items"] = [[*item, "added later"] for item in tree["items"]]
    assert decode("fpm", repack("fpm", tree)) == FPM_BATCH


@every_stream
def test_each_required_field_is_asked_for_by_its_name(stream: str) -> None:
    required = ["schema", *(f.name for f in msgspec.structs.fields(STREAMS[stream].record) if f.required)]
    for name in required:
        tree = unpack(stream)
        del tree[name]
        error = refusal(stream, repack(stream, tree))
        assert error.reason == DeadLetterReason.UNDECODABLE
        assert f"`{name}`" in str(error)


@pytest.mark.parametrize(
    ("stream", "changes", "path"),
    [
        ("decisions", {"causes": {}}, "`$.causes`"),
        ("decisions", {"targets": {"decode": -1}}, "`$.targets[...]`"),
        ("decisions", {"targets": {"decode": 2.5}}, "`$.targets[...]`"),
        ("decisions", {"targets": {"decode": True}}, "`$.targets[...]`"),
        ("decisions", {"epoch": "3"}, "`$.epoch`"),
        ("decisions", {"decision_id": 2**63}, "`$.decision_id`"),
        ("decisions", {"issued_at": -0.1}, "`$.issued_at`"),
        ("decisions", {"issued_at": 1e13}, "`$.issued_at`"),
        ("acks", {"status": "done"}, "`$.status`"),
        ("acks", {"executor": ""}, "`$.executor`"),
        ("proposals", {"kind": "set"}, "`$.kind`"),
        ("predictions", {"kv_hit_rate": 1.01}, "`$.kv_hit_rate`"),
        ("traffic", {"accept_length": 0.5}, "`$.accept_length`"),
        ("traffic", {"end": 0.0}, "before it starts"),
        ("traffic", {"isl": {"count": 1, "mean": 1.0, "bounds": [1.0], "counts": [1]}}, "`$.isl`"),
        ("traffic", {"isl": {"count": 1, "mean": 1.0, "bounds": [2.0, 2.0], "counts": [1, 0, 0]}}, "bounds must rise"),
        ("fpm", {"items": [[1.0, 2, 3]]}, "`$.items[0]`"),
        ("fpm", {"items": [[float("nan"), 2, 3, b""]]}, "`$.items[0][0]`"),
    ],
)
def test_a_bad_value_is_refused_with_its_path(stream: str, changes: Json, path: str) -> None:
    error = refusal(stream, repack(stream, unpack(stream) | changes))
    assert error.reason == DeadLetterReason.UNDECODABLE
    assert path in str(error)


@every_stream
def test_another_major_version_is_named_as_such(stream: str) -> None:
    tree = unpack(stream)
    tree["schema"] = tree["schema"].replace(".v1", ".v2")
    error = refusal(stream, repack(stream, tree))
    assert error.reason == DeadLetterReason.UNSUPPORTED_VERSION
    assert tree["schema"] in str(error)


def test_a_later_version_is_recognised_even_when_nothing_else_of_it_is() -> None:
    assert refusal("decisions", b'{"schema":"headrace.decision.v2","all":"new"}').reason == "unsupported_version"


def test_the_record_of_another_stream_is_refused() -> None:
    error = refusal("decisions", encode(EXAMPLES["acks"]))
    assert error.reason == DeadLetterReason.WRONG_SCHEMA
    assert "headrace.ack.v1" in str(error)
    assert "headrace.decision.v1" in str(error)


@every_stream
@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"{", b"[]", b"null", b"\x93\x01", b'{"schema":5}', b'{"schema":"\xff"}']
)
def test_garbage_is_undecodable(stream: str, data: bytes) -> None:
    assert refusal(stream, data).reason == DeadLetterReason.UNDECODABLE


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b'{"x":' * 200_000, b'{"schema":"headrace.config.v1","config":' + b"[" * 200_000]
)
def test_deep_nesting_is_undecodable(data: bytes) -> None:
    assert refusal("config", data).reason == DeadLetterReason.UNDECODABLE


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_what_is_no_number_is_undecodable(text: bytes) -> None:
    data = encode(EXAMPLES["acks"]).replace(b"1796086614.5", text)
    assert refusal("acks", data).reason == DeadLetterReason.UNDECODABLE


def test_a_long_complaint_is_cut() -> None:
    tree = unpack("acks")
    assert len(str(refusal("acks", repack("acks", tree | {"status": "x" * 100_000})))) < 500
    assert len(str(refusal("acks", repack("acks", tree | {"schema": "x" * 100_000})))) < 500


@pytest.mark.parametrize(
    "dgd", ["ml/llama-70b", "team.a/llama_3.1:70b", "a/b", "ns/größe", "n" * 253 + "/" + "m" * 253]
)
def test_a_dgd_has_two_parts(dgd: str) -> None:
    assert decode("acks", repack("acks", unpack("acks") | {"dgd": dgd})).dgd == dgd
    assert is_dgd(dgd)


@pytest.mark.parametrize(
    "dgd",
    [
        "",
        "a",
        "/",
        "a/",
        "/b",
        "a/b/c",
        "a b/c",
        "a/b\n",
        "a/\tb",
        "a/b\x00",
        "a/*",
        ">/b",
        "a/b\x7f",
        "a/b\u2028",
        "n" * 254 + "/" + "m" * 253,
    ],
)
def test_a_dgd_that_could_be_more_than_two_tokens_of_a_subject_is_refused(dgd: str) -> None:
    assert "`$.dgd`" in str(refusal("acks", repack("acks", unpack("acks") | {"dgd": dgd})))
    assert not is_dgd(dgd)


def test_plain_shows_byte_strings_in_base64_and_keeps_the_schema_first() -> None:
    shown = plain(FPM_BATCH)
    assert next(iter(shown)) == "schema"
    assert shown["schema"] == schema_of(FPM_BATCH)
    assert shown["items"][0][3].startswith("h6d2ZXJzaW9u")
