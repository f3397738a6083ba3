"""The parts of the documentation that come from the code: the stream table, the fields and the examples of records.

A document marks such a part by ``<!-- generated: NAME -->`` and ``<!-- end -->``; what stands between is replaced.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headrace.schemas.base import schema_of
from headrace.schemas.cloudevents import headers_for, to_kafka
from headrace.schemas.codec import encode, plain
from headrace.schemas.errors import HeadraceError
from headrace.schemas.examples import DECISION, EXAMPLES
from headrace.schemas.reasons import Reason
from headrace.schemas.streams import ORDERING, STREAMS

Json = dict[str, Any]

DOCUMENTS = ("streams.md", "decision-protocol.md")

_PART = re.compile(r"(<!-- generated: (?P<name>[\w :.-]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, schemas: Mapping[str, Json]) -> str:
    """The document with its marked parts as they should be; `schemas` are the JSON Schemas by name.

    Raises HeadraceError for a part that nobody generates.
    """

    def part(match: re.Match[str]) -> str:
        kind, _, argument = match["name"].partition(" ")
        if kind == "fields":
            content = field_table(schemas[argument])
        elif kind in _PARTS:
            content = _PARTS[kind](argument)
        else:
            names = ", ".join(("fields", *_PARTS))
            raise HeadraceError(f"no part of the documentation is called {kind!r}: use one of {names}")
        return f"{match[1]}\n{content}\n\n{match[3]}"

    return _PART.sub(part, text)


def stream_table(_: str = "") -> str:
    """Every stream with its promises."""
    return _table(
        (
            "stream",
            "record, version",
            "key",
            "what",
            "producer",
            "consumers",
            "may write",
            "kept",
            "order",
            "delivery",
            "codec",
        ),
        [
            (
                f"`{s.name}`",
                f"[`{schema_of(s.record)}`](../schemas/json/{schema_of(s.record)}.json)",
                "DGD",
                s.what,
                s.written_by,
                s.read_by,
                s.may_write,
                s.kept + (", in memory" if s.in_memory else ""),
                ORDERING,
                s.delivery,
                s.codec,
            )
            for s in STREAMS.values()
        ],
    )


def name_table(_: str = "") -> str:
    """What each stream is called on each bus."""
    return _table(
        ("stream", "NATS subject", "JetStream stream", "Kafka topic"),
        [
            (
                f"`{s.name}`",
                f"`headrace.{s.name}.<namespace>.<name>`",
                f"`HEADRACE_{s.name.upper()}`",
                f"`headrace.{s.name}`",
            )
            for s in STREAMS.values()
        ],
    )


def example(stream: str) -> str:
    """The example of a stream's record, laid out for reading."""
    text = msgspec.json.format(msgspec.json.encode(plain(EXAMPLES[stream]), order=None), indent=2)
    return f"```json\n{text.decode()}\n```"


def line(stream: str) -> str:
    """The example of a stream's record as its bytes are."""
    return f"```json\n{encode(EXAMPLES[stream]).decode()}\n```"


def header_table(_: str = "") -> str:
    """The headers of the example decision on both buses."""
    nats = headers_for(DECISION, source="/headrace/planner")
    kafka = {name.replace("ce_", "ce-"): (name, value.decode()) for name, value in to_kafka(nats)}
    return _table(
        ("NATS header", "value", "Kafka header"),
        [
            (f"`{name}`", f"`{value}`", f"`{kafka[name][0]}`" if name in kafka else "none")
            for name, value in nats.items()
        ],
    )


def field_table(schema: Json) -> str:
    """Every field of a record and of the structs inside it: name, type, whether a writer may leave it out, meaning."""
    rows: list[tuple[str, ...]] = []

    def add(node: Json, prefix: str) -> None:
        for name, member in node["properties"].items():
            needed = (
                "yes" if name in node["required"] else f"no: `{msgspec.json.encode(member.get('default')).decode()}`"
            )
            rows.append((f"`{prefix}{name}`", _type_name(member), needed, member.get("description", "")))
            inner = schema.get("$defs", {}).get(member.get("$ref", "").removeprefix("#/$defs/"), {})
            if "properties" in inner:
                add(inner, f"{prefix}{name}.")

    add(schema, "")
    return _table(("field", "type", "required, or what it is without", "meaning"), rows)


def _type_name(node: Json) -> str:
    """A type in words: `map to integer`, `string or null`."""
    if "anyOf" in node:
        return " or ".join(_type_name(option) for option in node["anyOf"])
    if "$ref" in node:
        return str(node["$ref"]).removeprefix("#/$defs/")
    if "enum" in node:
        return " or ".join(f"`{value}`" for value in node["enum"])
    if isinstance(node.get("additionalProperties"), dict):
        return f"map to {_type_name(node['additionalProperties'])}"
    if node.get("type") == "array":
        return f"list of {_type_name(node['items'])}"
    return str(node.get("type", "any"))


def reason_list(_: str = "") -> str:
    """The known reasons, in the order of their definition."""
    return ", ".join(f"`{reason.value}`" for reason in Reason) + "."


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


_PARTS: dict[str, Callable[[str], str]] = {
    "stream-table": stream_table,
    "name-table": name_table,
    "header-table": header_table,
    "reason-list": reason_list,
    "example": example,
    "line": line,
}
