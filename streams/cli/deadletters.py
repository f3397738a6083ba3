"""`headrace deadletters`: what could not be used, why, and putting it back once the cause is gone."""

import click

from headrace.streams.cli.options import Where, json_option, where_options

reason_option = click.option(
    "--reason", metavar="REASON", help="Only those with this reason: undecodable, invalid, ..."
)


@click.group("deadletters")
def command() -> None:
    """List, show and requeue what could not be used.

    \b
    headrace deadletters list
    headrace deadletters show 12
    headrace deadletters requeue 12
    """


@command.command("list")
@where_options
@reason_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="The newest N.")
@json_option
def list_(where: Where, reason: str | None, limit: int, as_json: bool) -> None:
    """List the newest dead letters, oldest first.

    `position` is the letter's own and what `show` and `requeue` take; `at` is that of the bad bytes on the stream they
    came from; `size` is theirs, in bytes.

    \b
    headrace deadletters list --reason undecodable
    headrace deadletters list --json | jq 'group_by(.reason) | map({reason: .[0].reason, n: length})'
    """
    from headrace.streams.cli.deadletters_read import list_letters

    list_letters(where.settings(), dgd=where.dgd, reason=reason, limit=limit, as_json=as_json)


@command.command("show")
@click.argument("position", type=click.IntRange(min=1))
@where_options
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["pretty", "hex", "raw", "json"]),
    default="pretty",
    show_default=True,
    help="The bytes laid out where they can be read, as a hexdump, as they are; or the letter as JSON.",
)
def show(where: Where, position: int, form: str) -> None:
    """Show the dead letter at POSITION: its reason, its headers, its bytes.

    \b
    headrace deadletters show 12
    headrace deadletters show 12 -o raw > bad.bin
    """
    from headrace.streams.cli.deadletters_read import show_letter

    show_letter(where.settings(), position, form)


@command.command("requeue")
@click.argument("positions", type=click.IntRange(min=1), nargs=-1, metavar="[POSITION]...")
@where_options
@reason_option
def requeue(where: Where, positions: tuple[int, ...], reason: str | None) -> None:
    """Put the bytes of dead letters back on the streams that they came from.

    For the time after an upgrade or a repair: bytes that this version still cannot decode are refused. So are foreign
    messages, items of a batch, bytes that were cut at 64 KiB, what only the planner may write (decisions, state), and
    an old inventory or configuration where a newer one has come.

    It may be repeated. Within two minutes a repeat is not stored again; after that it is, and readers pass over what
    they know by its id. The letters stay where they are until they are too old. A requeued message has the header
    headrace-requeued. Exit code 1 where something was refused.

    \b
    headrace deadletters requeue 12 14
    headrace deadletters requeue --reason unsupported_version
    """
    if bool(positions) == (reason is not None):
        raise click.UsageError("Give either positions or --reason, for example: headrace deadletters requeue 12")
    from headrace.streams.cli.deadletters_requeue import requeue_letters

    refused = requeue_letters(where.settings(), positions, reason=reason, dgd=where.dgd)
    if refused:
        raise click.exceptions.Exit(1)
