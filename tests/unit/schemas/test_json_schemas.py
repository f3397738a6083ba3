"""The published JSON Schemas say what the code does."""

import copy
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from headrace.schemas.base import schema_of
from headrace.schemas.codec import decode, encode, plain
from headrace.schemas.errors import RecordError
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.fpm import Fpm, decode_fpm
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.jsonschema import comments
from headrace.schemas.reasons import DeadLetterReason, Outcome, Reason
from headrace.schemas.streams import STREAMS

FOLDER = Path(__file__).parents[3] / "schemas" / "json"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
JSON_STREAMS = [name for name, stream in STREAMS.items() if stream.codec == "json"]
THE_PUBLIC_CONTRACT = ["decisions", "acks", "predictions", "proposals"]


def schema(name: str) -> Any:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())


def validator(stream: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema(schema_of(STREAMS[stream].record)))


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_a_schema_of_draft_2020_12(name: str) -> None:
    document = schema(name)
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["$id"] == f"urn:headrace:schema:{name}"
    assert document["description"]


def test_there_is_one_file_for_each_record_and_for_each_document_of_dynamo() -> None:
    expected = {schema_of(stream.record) for stream in STREAMS.values()}
    assert set(NAMES) == expected | {"dynamo.fpm.v1", "dynamo.fpm_envelope.v1"}


@pytest.mark.parametrize("stream", STREAMS)
def test_the_example_of_a_record_is_valid(stream: str) -> None:
    validator(stream).validate(plain(EXAMPLES[stream]))


def test_the_fpms_inside_the_example_are_valid() -> None:
    batch = EXAMPLES["fpm"]
    assert isinstance(batch, FpmBatch)
    check = jsonschema.Draft202012Validator(schema("dynamo.fpm.v1"))
    for item in batch.items:
        fpm = decode_fpm(item.payload)
        assert isinstance(fpm, Fpm)
        check.validate(msgspec.to_builtins(fpm))


@pytest.mark.parametrize("stream", JSON_STREAMS)
def test_schema_and_code_refuse_a_record_without_a_required_field(stream: str) -> None:
    example = plain(EXAMPLES[stream])
    for name in schema(schema_of(STREAMS[stream].record))["required"]:
        less = {key: value for key, value in example.items() if key != name}
        assert not validator(stream).is_valid(less)
        with pytest.raises(RecordError):
            decode(stream, msgspec.json.encode(less))


BAD: list[object] = [
    None,
    True,
    -1,
    1.5,
    2**70,
    1e300,
    "",
    "x" * 1000,
    [],
    {},
    {"a": -1},
    {"a": "b"},
    {"a": {"b": None}},
]


@pytest.mark.parametrize("stream", JSON_STREAMS)
def test_schema_and_code_agree_on_what_a_field_may_hold(stream: str) -> None:
    """For every field and a set of odd values: what the schema takes the code takes, and the other way round."""
    check, disagreements = validator(stream), []
    for name in plain(EXAMPLES[stream]):
        for value in BAD:
            tree = copy.deepcopy(plain(EXAMPLES[stream])) | {name: value}
            if check.is_valid(tree) != taken(stream, tree):
                disagreements.append((name, value))
    assert disagreements == DISAGREEMENTS.get(stream, [])


# Rules of the code that JSON Schema cannot say.
DISAGREEMENTS: dict[str, list[tuple[str, object]]] = {
    "traffic": [("end", 1.5)],  # a window that ends before it starts
}


def taken(stream: str, tree: object) -> bool:
    try:
        decode(stream, msgspec.json.encode(tree))
    except RecordError:
        return False
    return True


@pytest.mark.parametrize("stream", THE_PUBLIC_CONTRACT)
def test_every_field_of_the_public_contract_is_described(stream: str) -> None:
    properties = schema(schema_of(STREAMS[stream].record))["properties"]
    assert [name for name, member in properties.items() if not member.get("description")] == []


def test_reasons_are_named_and_open() -> None:
    defs = schema("headrace.decision.v1")["$defs"]
    assert defs["Reason"]["x-extensible-enum"] == [reason.value for reason in Reason]
    defs = schema("headrace.tick_report.v1")["$defs"]
    assert defs["Outcome"]["x-extensible-enum"] == [outcome.value for outcome in Outcome]
    defs = schema("headrace.deadletter.v1")["$defs"]
    assert defs["DeadLetterReason"]["x-extensible-enum"] == [reason.value for reason in DeadLetterReason]
    unknown = plain(EXAMPLES["decisions"]) | {"reasons": {"decode": "a_reason_of_tomorrow"}}
    validator("decisions").validate(unknown)
    assert encode(decode("decisions", msgspec.json.encode(unknown)))


def test_comments_beside_members_become_descriptions() -> None:
    text = '''
class A(Struct):
    """Doc."""

    x: int  # first
    y: dict[str, int] = {}  # second: with a # inside
    z: int
    KIND = "kind"  # third


elsewhere = {
    "a": 1,  # not a member
}


class B:
    x: str  # of another class
'''
    assert comments(text) == {
        "A": {"x": "first", "y": "second: with a # inside", "KIND": "third"},
        "B": {"x": "of another class"},
    }
