"""JSON Schemas (draft 2020-12) of the records, with the comments of the source as descriptions.

Pure: source text in, documents out; `headrace.schemas.generate` reads and writes the files.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.schemas.base import Record, schema_of
from headrace.schemas.codec import plain
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.fpm import Fpm, FpmEnvelope
from headrace.schemas.fpm_batch import FpmItem
from headrace.schemas.streams import STREAMS

Json = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FOREIGN: dict[str, type[msgspec.Struct]] = {"dynamo.fpm.v1": Fpm, "dynamo.fpm_envelope.v1": FpmEnvelope}
_ENUMERATIONS = ("Reason", "Outcome", "DeadLetterReason")  # repeated in many fields: named once in $defs

_SCHEMA_FIELD = "name and major version of this record"
_MSGPACK_NOTE = "On the wire this is msgpack, where byte strings are `bin`; in JSON they are base64."

_ARRAYS = {kind.__name__: kind.__struct_fields__ for kind in (FpmItem,)}  # structs that travel as arrays

_CLASS = re.compile(r"class (\w+)\b")
_MEMBER = re.compile(r"    (\w+)(?:: .+?| = .+?)  # (.+)$")


def documents(sources: Mapping[str, str]) -> dict[str, Json]:
    """Schema name -> its JSON Schema: every record, and Dynamo's own FPM and event envelope.

    `sources` is the text of each module of `headrace.schemas` by its full name: the comments beside fields become
    descriptions.
    """
    kinds: dict[str, type[msgspec.Struct]] = {schema_of(s.record): s.record for s in STREAMS.values()} | FOREIGN
    return {name: _document(name, kind, sources) for name, kind in sorted(kinds.items())}


def comments(source: str) -> dict[str, dict[str, str]]:
    """Class -> member -> the comment at the end of its line, in the text of a module."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in source.splitlines():
        if match := _CLASS.match(line):
            current = found.setdefault(match[1], {})
        elif line and not line[0].isspace():
            current = {}  # module level: its members belong to no class
        elif match := _MEMBER.match(line):
            current[match[1]] = match[2]
    return found


def _document(name: str, kind: type[msgspec.Struct], sources: Mapping[str, str]) -> Json:
    raw = msgspec.json.schema(kind)
    defs: Json = raw["$defs"]
    said = _all_comments(sources)
    for title, schema in defs.items():
        inherited = {"schema": _SCHEMA_FIELD} | said["Record"]
        _describe(schema, inherited | said.get(title, {}), fields=_ARRAYS.get(title, ()))
    root: Json = defs.pop(kind.__name__)
    root, defs = _name_enumerations(root, defs)
    return {
        "$schema": DIALECT,
        "$id": f"urn:headrace:schema:{name}",
        "title": kind.__name__,
        "description": _description(name, kind, sources[kind.__module__]),
        **{key: value for key, value in root.items() if key not in ("title", "description")},
        **({"$defs": dict(sorted(defs.items()))} if defs else {}),
        **_example_of(kind),
    }


def _all_comments(sources: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {title: members for text in sources.values() for title, members in comments(text).items()}


def _describe(schema: Json, said: Mapping[str, str], fields: tuple[str, ...]) -> None:
    """Put each member's comment where JSON Schema has its description."""
    for name, member in schema.get("properties", {}).items():
        if name in said:
            member["description"] = said[name]
    for name, member in zip(fields, schema.get("prefixItems", ()), strict=False):
        member["title"] = name
        if name in said:
            member["description"] = said[name]
    if "enum" in schema and said:
        lines = [f"`{value}`: {said[value.upper()]}" for value in schema["enum"] if value.upper() in said]
        schema["description"] = "; ".join(lines)


def _name_enumerations(root: Json, defs: Json) -> tuple[Json, Json]:
    """Replace the repeated open enumerations by references to one definition each."""
    named: Json = {}

    def walk(node: Any) -> Any:
        if isinstance(node, list):
            return [walk(item) for item in node]
        if not isinstance(node, dict):
            return node
        title = node.get("title")
        if title in _ENUMERATIONS and "x-extensible-enum" in node:
            beside = {key: node[key] for key in ("description", "default") if key in node}
            named[title] = {k: v for k, v in node.items() if k not in beside} | {
                "description": "Known values; a reader must bear others."
            }
            return {"$ref": f"#/$defs/{title}", **beside}
        return {key: walk(value) for key, value in node.items()}

    return walk(root), walk(defs) | named


def _description(name: str, kind: type[msgspec.Struct], source: str) -> str:
    """The module's docstring, the record's own, and how it is encoded."""
    module = source.split('"""')[1] if source.startswith('"""') else ""
    own = "" if kind.__doc__ is None or kind.__doc__ == Record.__doc__ else kind.__doc__
    msgpack = name in FOREIGN or any(s.codec == "msgpack" for s in STREAMS.values() if s.record is kind)
    texts = [own, module] if name in FOREIGN else [module, own]
    return "\n\n".join(_paragraphs([*texts, _MSGPACK_NOTE if msgpack else ""]))


def _paragraphs(texts: list[str]) -> Iterator[str]:
    """Docstrings as plain paragraphs, each on one line."""
    for text in texts:
        for paragraph in re.split(r"\n\s*\n", text.strip()):
            if paragraph:
                yield " ".join(paragraph.replace("``", "`").split())


def _example_of(kind: type[msgspec.Struct]) -> Json:
    for record in EXAMPLES.values():
        if type(record) is kind:
            return {"examples": [plain(record)]}
    return {}


def to_text(schema: Json) -> str:
    """The text of a schema's file."""
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"
