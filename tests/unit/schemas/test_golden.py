"""What was once on the wire stays readable, and within a major version nothing about it changes."""

import base64
import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.schemas.base import schema_of
from headrace.schemas.codec import decode, encode
from headrace.schemas.compatibility import breaking_changes
from headrace.schemas.fpm import decode_envelope, decode_fpm, encode_envelope, encode_fpm
from headrace.schemas.streams import STREAMS

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
SCHEMAS = Path(__file__).parents[3] / "schemas" / "json"
STREAM_OF = {schema_of(stream.record): stream.name for stream in STREAMS.values()}
FOREIGN: dict[str, Callable[[bytes], bytes]] = {
    "dynamo.fpm.v1": lambda data: encode_fpm(decode_fpm(data)),
    "dynamo.fpm_envelope.v1": lambda data: encode_envelope(decode_envelope(data)),
}


def files(pattern: str, but: str = "^$") -> pytest.MarkDecorator:
    """A test for each golden file of a pattern."""
    found = sorted(path.name for path in GOLDEN.glob(pattern) if not re.search(but, path.name))
    assert found, f"no golden file matches {pattern}"
    return pytest.mark.parametrize("name", found)


def schema_name(file: str) -> str:
    match = re.match(r"\w+\.\w+\.v\d+", file)
    assert match
    return match[0]


def without_later_fields(now: Any, then: Any) -> Any:
    """`now` without the fields that `then` did not have: within a major version fields may be added."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {key: without_later_fields(now[key], then[key]) for key in now if key in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) >= len(then):
        return [without_later_fields(*pair) for pair in zip(now, then, strict=False)]
    return now


@files("headrace.*.json", but=r"\.(least|schema)\.json$")
def test_a_golden_record_is_read_and_written_as_it_was(name: str) -> None:
    data = (GOLDEN / name).read_bytes().strip()
    again = encode(decode(STREAM_OF[schema_name(name)], data))
    then, now = msgspec.json.decode(data), msgspec.json.decode(again)
    assert msgspec.json.encode(without_later_fields(now, then)) == data


@files("headrace.*.msgpack.b64")
def test_a_golden_batch_is_read_and_written_as_it_was(name: str) -> None:
    data = base64.b64decode((GOLDEN / name).read_text())
    again = encode(decode(STREAM_OF[schema_name(name)], data))
    then, now = msgspec.msgpack.decode(data), msgspec.msgpack.decode(again)
    assert msgspec.msgpack.encode(without_later_fields(now, then)) == data


@files("dynamo.*.msgpack.b64")
def test_a_golden_message_of_dynamo_is_read_and_written_byte_for_byte(name: str) -> None:
    data = base64.b64decode((GOLDEN / name).read_text())
    assert FOREIGN[schema_name(name)](data) == data


@files("headrace.*.least.json")
def test_a_golden_record_with_only_its_required_fields_is_read(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    record = decode(STREAM_OF[schema_name(name)], data)
    then, now = msgspec.json.decode(data), msgspec.json.decode(encode(record))
    assert without_later_fields(now, then) == then


def test_every_record_has_golden_files() -> None:
    named = {schema_name(path.name) for path in GOLDEN.iterdir()}
    assert named == set(STREAM_OF) | set(FOREIGN)
    assert {schema_name(path.name) for path in GOLDEN.glob("*.schema.json")} == named


@files("*.schema.json")
def test_nothing_changed_that_old_readers_or_writers_rely_on(name: str) -> None:
    old = msgspec.json.decode((GOLDEN / name).read_bytes())
    new = msgspec.json.decode((SCHEMAS / f"{schema_name(name)}.json").read_bytes())
    assert breaking_changes(old, new) == []


def changed(edit: Callable[[Any], object], name: str = "headrace.decision.v1") -> list[str]:
    """What the check says about an edited schema."""
    old = msgspec.json.decode((GOLDEN / f"{name}.schema.json").read_bytes())
    new = copy.deepcopy(old)
    edit(new)
    return breaking_changes(old, new)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda s: s["properties"].pop("epoch"), r"\$\.epoch: removed"),
        (lambda s: s["required"].append("advisory"), r"\$\.advisory: newly required"),
        (lambda s: s["required"].remove("epoch"), r"\$\.epoch: no longer required"),
        (lambda s: s["properties"]["epoch"].update(type="string"), r"\$\.epoch: `type`"),
        (lambda s: s["properties"]["epoch"].update(maximum=9), r"\$\.epoch: `maximum`"),
        (lambda s: s["properties"]["epoch"].pop("minimum"), r"\$\.epoch: `minimum`"),
        (lambda s: s["properties"]["dgd"].update(pattern="^a$"), r"\$\.dgd: `pattern`"),
        (lambda s: s["properties"]["schema"].update(enum=["headrace.decision.v2"]), r"\$\.schema: `enum`"),
        (lambda s: s["properties"]["advisory"].update(default=True), r"\$\.advisory: `default`"),
        (lambda s: s["properties"]["targets"]["additionalProperties"].update(maximum=9), r"\$\.targets\[\.\.\.\]"),
        (lambda s: s["properties"]["targets"].pop("additionalProperties"), r"\$\.targets: `additionalProperties`"),
        (lambda s: s["$defs"]["Causes"]["properties"].pop("tick"), r"\$\.causes\.tick: removed"),
        (lambda s: s["$defs"]["Causes"]["properties"]["prediction"]["anyOf"].pop(), r"\$\.causes\.prediction: had 2"),
        (
            lambda s: s["$defs"]["Causes"]["properties"]["prediction"]["anyOf"][0].update(maxLength=3),
            r"\$\.causes\.prediction: `maxLength`",
        ),
        (lambda s: s["$defs"]["Reason"]["x-extensible-enum"].remove("drift"), "drift left the enumeration"),
    ],
)
def test_a_change_that_breaks_somebody_is_found(edit: Callable[[Any], object], complaint: str) -> None:
    assert len(found := changed(edit)) == 1, found
    assert re.search(complaint, found[0])


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda s: s["$defs"]["FpmItem"]["prefixItems"].pop(), "none may go"),
        (lambda s: s["$defs"]["FpmItem"]["prefixItems"].insert(0, {"title": "new"}), "new fields go to the end"),
        (lambda s: s["$defs"]["FpmItem"]["prefixItems"][1].update(type="string"), r"\[1\]: `type`"),
        (lambda s: s["$defs"]["FpmItem"].update(minItems=5), "at least 4 positions became 5"),
    ],
)
def test_a_change_of_an_array_that_breaks_somebody_is_found(edit: Callable[[Any], object], complaint: str) -> None:
    assert re.search(complaint, "\n".join(changed(edit, "headrace.fpm_batch.v1")))


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s["properties"].update(added={"type": "string", "default": ""}),
        lambda s: s["$defs"]["Causes"]["properties"].update(added={"type": "integer", "default": 0}),
        lambda s: s["$defs"]["Reason"]["x-extensible-enum"].append("a_new_reason"),
        lambda s: s.update(description="said better"),
        lambda s: s["properties"]["epoch"].update(description="said better"),
    ],
)
def test_an_added_field_with_a_default_breaks_nobody(edit: Callable[[Any], object]) -> None:
    assert changed(edit) == []


def test_a_longer_array_breaks_nobody() -> None:
    def longer(schema: Any) -> None:
        schema["$defs"]["FpmItem"]["prefixItems"].append({"type": "string", "default": ""})

    assert changed(longer, "headrace.fpm_batch.v1") == []
