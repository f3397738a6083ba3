"""`headrace schema`: the records of the wire as JSON Schemas, an AsyncAPI document, and one real example of each."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib.resources import files

import click

from headrace.schemas.errors import ConfigError
from headrace.streams.cli import output
from headrace.streams.cli.options import json_option


@dataclass(frozen=True, slots=True)
class Kind:
    """A record by its names: ``headrace.decision.v1``, ``Decision``, and the stream that carries it."""

    schema: str
    record: str
    stream: str | None
    codec: str
    what: str

    @property
    def names(self) -> tuple[str, ...]:
        short = self.schema.removeprefix("headrace.")
        return tuple(n for n in (self.schema, self.record, self.stream, short, short.rpartition(".v")[0]) if n)


COLUMNS = (
    output.Column("record", lambda row: row["record"]),
    output.Column("schema", lambda row: row["schema"]),
    output.Column("stream", lambda row: row["stream"] or "-"),
    output.Column("codec", lambda row: row["codec"], optional=True),
    output.Column("what", lambda row: row["what"], wrap=True),
)


def kinds() -> Iterator[Kind]:
    """Every record of ours, in the order of the stream table, and Dynamo's own."""
    from headrace.schemas.base import schema_of
    from headrace.schemas.streams import STREAMS

    for stream in STREAMS.values():
        yield Kind(schema_of(stream.record), stream.record.__name__, stream.name, stream.codec, stream.what)
    yield Kind("dynamo.fpm.v1", "Fpm", None, "msgpack", "one engine iteration, inside a batch's item")
    yield Kind("dynamo.fpm_envelope.v1", "FpmEnvelope", None, "msgpack", "Dynamo's event envelope around an FPM")


def find(name: str) -> Kind:
    """The record of that name; case matters only where two differ by it. Raises ConfigError with the nearest name."""
    by_name: dict[str, Kind] = {}
    for kind in kinds():
        for known in kind.names:
            if known == name:  # `Fpm` is Dynamo's, `fpm` our stream
                return kind
            by_name.setdefault(known.lower(), kind)
    if name.lower() in by_name:
        return by_name[name.lower()]
    near = get_close_matches(name.lower(), by_name, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`headrace schema` lists them"
    raise ConfigError(f"no record or stream is called {name!r}: {hint}")


@click.command("schema")
@click.argument("name", required=False, metavar="[RECORD|STREAM]")
@click.option("--example", is_flag=True, help="Print one real record instead of the schema.")
@click.option("--asyncapi", is_flag=True, help="Print the AsyncAPI 3 document of all streams, YAML.")
@json_option
def command(name: str | None, example: bool, asyncapi: bool, as_json: bool) -> None:
    """Print the JSON Schema of a record, or list the records.

    A record is named by its stream (decisions), its name (Decision) or its schema (headrace.decision.v1).

    \b
    headrace schema
    headrace schema decisions > decision.schema.json
    headrace schema acks --example
    headrace schema --asyncapi > asyncapi.yaml
    """
    if asyncapi and (name or example):
        raise click.UsageError("--asyncapi is about all streams: leave out the record and --example.")
    if asyncapi:
        output.write((files("headrace.schemas") / "asyncapi.yaml").read_text(encoding="utf-8").rstrip("\n"))
    elif name is None:
        if example:
            raise click.UsageError("--example needs a record, for example: headrace schema decisions --example")
        output.show([asdict(kind) for kind in kinds()], COLUMNS, as_json=as_json)
    else:
        output.write(_example(find(name)) if example else _schema(find(name)))


def _schema(kind: Kind) -> str:
    text = (files("headrace.schemas") / "json" / f"{kind.schema}.json").read_text(encoding="utf-8")
    return text.rstrip("\n")


def _example(kind: Kind) -> str:
    from headrace.schemas.codec import plain
    from headrace.schemas.examples import EXAMPLES

    if kind.stream is None:
        raise ConfigError(
            f"{kind.schema} is Dynamo's record and travels inside ours: see `headrace schema fpm --example`"
        )
    return output.to_json(plain(EXAMPLES[kind.stream]), pretty=True)
