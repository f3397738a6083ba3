"""What every record has in common: a tag with its schema name and major version, and bounded numbers."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

Role = str  # roles are data: "prefill", "decode", "agg"; an encoder may come
PREFILL: Role = "prefill"
DECODE: Role = "decode"
AGG: Role = "agg"

# Bounds keep garbage out of the arithmetic: NaN fails ">= 0", infinity fails "<=".
Count = Annotated[int, Meta(ge=0, le=2**40)]
Serial = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # our ids and counters
Unsigned = Annotated[int, Meta(ge=0)]  # foreign ids and counters in msgpack, up to 2^64-1, which is all it can say
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]
Amount = Annotated[float, Meta(ge=0.0, le=1e15)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]

# "namespace/name". No blanks, control characters or wildcards: the two parts become tokens of a bus's subject.
# `$` alone would let a trailing newline pass in Python.
_LONGEST_DGD = 507
_PART = r"[^/\s*>\x00-\x1f\x7f]+"
DgdName = Annotated[str, Meta(pattern=rf"^{_PART}/{_PART}$(?!\n)", max_length=_LONGEST_DGD)]


_is_dgd = re.compile(rf"{_PART}/{_PART}").fullmatch


def is_dgd(name: str) -> bool:
    """May a record's `dgd` be this?"""
    return len(name) <= _LONGEST_DGD and _is_dgd(name) is not None


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    """A record on a stream. Subclasses set ``tag="headrace.<record>.v<major>"``.

    Readers ignore unknown fields; within a major version fields are only ever added, with a default.
    """

    dgd: DgdName  # the deployment that it is about, namespace/name: the key of the record


def schema_of(record: Record | type[Record]) -> str:
    """The schema name and major version of a record: ``headrace.decision.v1``."""
    kind = record if isinstance(record, type) else type(record)
    tag = kind.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
