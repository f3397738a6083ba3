"""The tables of docs/configuration.md, from the configuration's struct and the comments beside its fields.

The page marks them by ``<!-- generated: shared -->``, ``own`` and ``reference``, each up to ``<!-- end -->``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.schemas.config import ALIASES, PlannerConfig, Scheduling
from headrace.schemas.config_reference import BOTH, DEFAULTS, REFERENCE_KEYS, SHARED, VERSIONS
from headrace.schemas.errors import HeadraceError
from headrace.schemas.jsonschema import comments

# What a value counts, by the end of its name.
UNITS = {
    "_ms": "ms",
    "_seconds": "s",
    "_tokens": "tokens",
    "_kv_rate": "percent",
    "_sensitivity": "percent",
    "_gpu": "GPUs",
    "_gpu_budget": "GPUs",
    "_endpoint": "replicas",
    "_replicas": "replicas",
    "_observations": "iterations",
    "_points": "intervals",
    "_intervals": "intervals",
    "_nextn": "tokens",
    "_bucket_size": "cells",
    "_share": "share",
    "_deviations": "standard deviations",
}

LARGE = 100_000  # from here a bound only keeps nonsense out

_WORDS = {
    "boolean": "`true` or `false`",
    "string": "name",
    "integer": "whole number",
    "object": "section",
    "array": "list",
}

_PART = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str, source: str) -> str:
    """The page with its tables as they should be; `source` is the text of `schemas/config.py`.

    Raises HeadraceError for a part that is none of `shared`, `own` and `reference`.
    """
    rows = list(_rows(source))
    head = ("key", "value", "default", "unit")
    shared = [(*r[1:5], VERSIONS.get(r[0], BOTH), r[5]) for r in rows if r[0] in SHARED]
    parts = {
        "shared": _table((*head, "Dynamo", "meaning"), shared),
        "own": _table((*head, "meaning"), [r[1:] for r in rows if r[0] not in SHARED]),
        "reference": _table(("key", "value", "default there", "Dynamo", "here"), list(_reference_rows())),
    }

    def part(match: re.Match[str]) -> str:
        if match["name"] not in parts:
            raise HeadraceError(f"no part of the page is called {match['name']!r}: use one of {', '.join(parts)}")
        return f"{match[1]}\n{parts[match['name']]}\n\n{match[3]}"

    return _PART.sub(part, page)


def _rows(source: str) -> Iterator[tuple[str, ...]]:
    """(name, then the cells of its row) for every key, those of `scheduling` after it."""
    said = comments(source)
    yield from _rows_of(PlannerConfig, said, "")


def _rows_of(
    kind: type[msgspec.Struct], said: Mapping[str, Mapping[str, str]], prefix: str
) -> Iterator[tuple[str, ...]]:
    schema = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    for field in msgspec.structs.fields(kind):
        name = prefix + field.name
        if isinstance(field.default, Scheduling):
            yield from _rows_of(Scheduling, said, f"{field.name}.")
            continue
        spellings = [f"`{alias}`" for alias, real in ALIASES.items() if real == name]
        key = f"`{name}`" + (f" ({', '.join(spellings)})" if spellings else "")
        theirs = f" (reference: {_shown(DEFAULTS[name])})" if name in DEFAULTS else ""
        default = _shown(field.default) + theirs
        yield name, key, _value(schema[field.name]), default, _unit(name), said[kind.__name__][field.name]


def _reference_rows() -> Iterator[tuple[str, ...]]:
    for name, key in REFERENCE_KEYS.items():
        schema = msgspec.json.schema(key.kind)
        section = "$ref" in schema
        default = "" if section else _shown(key.default)
        yield f"`{name}`", "section" if section else _value(schema), default, key.versions, key.here


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def _shown(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{msgspec.json.encode(value).decode()}`"


def _value(node: Mapping[str, Any]) -> str:
    """What a key takes, in words: its type and its bounds."""
    if "anyOf" in node:
        return " or ".join(_value(option) for option in node["anyOf"])
    if "$ref" in node or node.get("type") == "object":
        return "section"
    if "enum" in node:
        return " or ".join("null" if choice is None else f"`{choice}`" for choice in node["enum"])
    kind = _WORDS.get(node["type"], node["type"])
    bounds = [
        f"{words} {node[key]:g}"
        for key, words in (
            ("exclusiveMinimum", "above"),
            ("minimum", "from"),
            ("exclusiveMaximum", "below"),
            ("maximum", "to"),
        )
        if key in node and abs(node[key]) < LARGE
    ]
    return " ".join([kind, *bounds])


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, tuple("---" for _ in head), *rows])
