"""What a new JSON Schema of a record may not change within a major version: a check that needs no registry.

Old readers must understand new bytes, and new readers old bytes. So a field keeps its name, type, bounds and default
for ever; fields may be added where they have a default; only open enumerations (`x-extensible-enum`) grow.
"""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_KEPT = (
    "type",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "contentEncoding",
    "default",
)


def breaking_changes(old: Json, new: Json) -> list[str]:
    """What in `new` breaks readers or writers of `old`, one sentence each; empty where nothing does."""
    return list(_Comparison(old.get("$defs", {}), new.get("$defs", {})).compare(old, new, "$"))


class _Comparison:
    def __init__(self, old_defs: Json, new_defs: Json) -> None:
        self._old_defs, self._new_defs = old_defs, new_defs

    def compare(self, old: Any, new: Any, path: str) -> Iterator[str]:
        old, new = _resolve(old, self._old_defs), _resolve(new, self._new_defs)
        for rule in _KEPT:
            if old.get(rule) != new.get(rule):
                yield f"{path}: `{rule}` was {old.get(rule)!r} and is {new.get(rule)!r}: it stays as it is"
        yield from _enumeration(old, new, path)
        yield from self._members(old, new, path)
        yield from self._positions(old, new, path)
        for inner in ("additionalProperties", "items"):
            if isinstance(old.get(inner), dict) and isinstance(new.get(inner), dict):
                yield from self.compare(old[inner], new[inner], f"{path}[...]")
            elif old.get(inner) != new.get(inner):
                yield f"{path}: `{inner}` was {old.get(inner)!r} and is {new.get(inner)!r}"
        yield from self._alternatives(old, new, path)

    def _members(self, old: Json, new: Json, path: str) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        for name in before:
            if name not in after:
                yield f"{path}.{name}: removed; keep it until the next major version"
            else:
                yield from self.compare(before[name], after[name], f"{path}.{name}")
        for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
            yield f"{path}.{name}: newly required, and old bytes do not have it; give it a default"
        for name in sorted(set(old.get("required", ())) - set(new.get("required", ()))):
            if name in after:
                yield f"{path}.{name}: no longer required, but old readers ask for it"

    def _positions(self, old: Json, new: Json, path: str) -> Iterator[str]:
        """Structs that travel as arrays: new fields go to the end, and old bytes must stay long enough."""
        before, after = old.get("prefixItems", []), new.get("prefixItems", [])
        if len(after) < len(before):
            yield f"{path}: had {len(before)} positions and has {len(after)}: none may go"
        for index, (was, now) in enumerate(zip(before, after, strict=False)):
            if was.get("title") != now.get("title"):
                yield f"{path}[{index}]: was {was.get('title')!r} and is {now.get('title')!r}: new fields go to the end"
            yield from self.compare(was, now, f"{path}[{index}]")
        if old.get("minItems") != new.get("minItems"):
            yield f"{path}: at least {old.get('minItems')} positions became {new.get('minItems')}: add with a default"

    def _alternatives(self, old: Json, new: Json, path: str) -> Iterator[str]:
        before, after = old.get("anyOf", []), new.get("anyOf", [])
        if len(before) != len(after):
            yield f"{path}: had {len(before) or 1} alternatives and has {len(after) or 1}: a field keeps its type"
            return
        for was, now in zip(before, after, strict=True):
            yield from self.compare(was, now, path)


def _resolve(schema: Any, defs: Json) -> Json:
    """A reference replaced by what it names; what stands beside it, such as a default, counts too."""
    if isinstance(schema, dict) and "$ref" in schema:
        return {**defs[schema["$ref"].removeprefix("#/$defs/")], **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema if isinstance(schema, dict) else {}


def _enumeration(old: Json, new: Json, path: str) -> Iterator[str]:
    if old.get("enum") != new.get("enum"):
        yield f"{path}: `enum` was {old.get('enum')} and is {new.get('enum')}: a closed enumeration stays as it is"
    gone = set(old.get("x-extensible-enum", ())) - set(new.get("x-extensible-enum", ()))
    if gone:
        yield f"{path}: {', '.join(sorted(gone))} left the enumeration; old records carry it"
