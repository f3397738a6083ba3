"""The parts of the documentation that come from the code: the stream table, and the examples of records.

A document marks such a part by ``<!-- generated: NAME -->`` and ``<!-- end -->``; what stands between is replaced.
"""

import re
from collections.abc import Callable

import msgspec

from headrace.schemas.base import schema_of
from headrace.schemas.cloudevents import headers_for, to_kafka
from headrace.schemas.codec import encode, plain
from headrace.schemas.errors import HeadraceError
from headrace.schemas.examples import DECISION, EXAMPLES
from headrace.schemas.reasons import Reason
from headrace.schemas.streams import STREAMS

DOCUMENTS = ("streams.md", "decision-protocol.md")

_PART = re.compile(r"(<!-- generated: (?P<name>[\w :.-]+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str) -> str:
    """The document with its marked parts as they should be. Raises HeadraceError for a part that nobody generates."""

    def part(match: re.Match[str]) -> str:
        kind, _, argument = match["name"].partition(" ")
        if kind not in _PARTS:
            raise HeadraceError(f"no part of the documentation is called {kind!r}: use one of {', '.join(_PARTS)}")
        return f"{match[1]}\n{_PARTS[kind](argument)}\n\n{match[3]}"

    return _PART.sub(part, text)


def stream_table(_: str = "") -> str:
    """Every stream with its promises."""
    return _table(
        ("stream", "record and version", "what", "producer", "consumers", "may write", "kept", "delivery", "codec"),
        [
            (
                f"`{s.name}`",
                f"[`{schema_of(s.record)}`](../schemas/json/{schema_of(s.record)}.json)",
                s.what,
                s.written_by,
                s.read_by,
                s.may_write,
                s.kept + (", in memory" if s.in_memory else ""),
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
