"""`headrace streams`: what streams there are, and what is said on one of them."""

import click

from headrace.streams.cli.options import Where, json_option, where_options

FROM_HELP = "Where to begin: start, now, a position, or -N: that many positions before the end."


class Begin(click.ParamType):
    """`start`, `now`, or a whole number."""

    name = "start|now|POSITION"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        text = str(value)
        if text in ("start", "now"):
            return text
        try:
            return int(text)
        except ValueError:
            self.fail(f"{text!r} is neither start, now nor a whole number", param, ctx)


@click.group("streams")
def command() -> None:
    """List the streams, or tail one.

    \b
    headrace streams list
    headrace streams tail ticks --from -10 --no-follow
    """


@command.command("list")
@where_options
@json_option
def list_(where: Where, as_json: bool) -> None:
    """List the streams: names, records, retention, who writes and who reads.

    With a bus (--bus, the configuration's, or the embedded server that runs here) also how much is kept. A table on a
    terminal, tab-separated values in a pipe.

    \b
    headrace streams list
    headrace streams list --bus nats://localhost:4222 --json | jq '.[] | {name, messages}'
    """
    from headrace.streams.cli.streams_list import list_streams

    list_streams(where.settings(), as_json=as_json)


@command.command("tail")
@click.argument("stream")
@where_options
@click.option(
    "--from", "begin", type=Begin(), metavar="WHERE", help=f"{FROM_HELP}  [default: now; start with --no-follow]"
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option("--follow/--no-follow", default=True, help="Wait for more, or end with what is there.  [default: follow]")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["json", "pretty"]),
    help="One line of JSON for each message, or laid out.  [default: pretty on a terminal, else json]",
)
def tail(where: Where, stream: str, begin: str | int | None, limit: int | None, follow: bool, form: str | None) -> None:
    """Print what is on STREAM, and what comes.

    Each message is an object: position, stored_at, dgd, record. Records that travel as msgpack are shown as JSON, and
    the FPMs of a batch are decoded. Bytes that are no record have `error` and `data` (base64) instead of `record`.
    Reading changes nothing: no offsets, no dead letters.

    \b
    headrace streams tail decisions --dgd ml/llama-70b
    headrace streams tail ticks --from -1 --no-follow | jq .record.roles
    headrace streams tail fpm --limit 1 -o pretty
    """
    from headrace.streams.cli.streams_tail import Tail, tail_stream

    tail_stream(where.settings(), Tail(stream, where.dgd, begin, limit, follow, form))
