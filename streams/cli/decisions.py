"""`headrace decisions`: what was decided, what came of it, and carrying out what comes."""

import click

from headrace.streams.cli.options import Where, json_option, where_options
from headrace.streams.cli.streams import Begin


@click.group("decisions")
def command() -> None:
    """Follow, list and carry out decisions.

    \b
    headrace decisions list
    headrace decisions follow --exec './scale.sh'
    """


@command.command("list")
@where_options
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="The newest N.")
@json_option
def list_(where: Where, limit: int, as_json: bool) -> None:
    """List the newest decisions with what came of them, oldest first.

    The status is that of the first ack that settles the decision (applied, rejected, failed, expired); before it
    `accepted` where an executor has begun, `outstanding`, or `unanswered` once it has expired or a newer one is there.
    The delay is from the decision to that ack.

    \b
    headrace decisions list --dgd ml/llama-70b --limit 5
    headrace decisions list --json | jq '.[] | select(.status == "failed")'
    """
    from headrace.streams.cli.decisions_list import list_decisions

    list_decisions(where.settings(), dgd=where.dgd, limit=limit, as_json=as_json)


@command.command("follow")
@where_options
@click.option("--exec", "exec_", metavar="COMMAND", help="Run a command for each decision, and acknowledge it.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; run and acknowledge nothing.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="With --exec: how long the command may take before it is ended and the decision has failed.",
)
@click.option("--name", default="command", show_default=True, help="With --exec: who signs the acks.")
@click.option(
    "--from",
    "begin",
    type=Begin(),
    metavar="WHERE",
    help="Without --exec: start, now, a position, or -N before the end.  [default: now]",
)
def follow(where: Where, exec_: str | None, dry_run: bool, timeout: float, name: str, begin: str | int | None) -> None:
    """Print decisions as they come, one line of JSON each; or carry them out.

    With --exec a command runs for each decision of one deployment (--dgd, else the configuration's), one at a time:
    the decision is JSON on its stdin and in variables such as HEADRACE_TARGET_DECODE and HEADRACE_PREVIOUS_DECODE.
    Exit code 0 is acknowledged as applied, 75 as rejected, any other as failed with the last line of stderr. Decisions
    that are advisory, expired, settled or overtaken by a newer one are passed over. The newest unsettled decision is
    carried out even if it was there before.

    Ctrl-C or SIGTERM ends a command that runs; its decision stays unsettled and is found again at the next start.

    \b
    headrace decisions follow --dgd ml/llama-70b | jq .targets
    headrace decisions follow --exec './scale.sh' --dgd ml/llama-70b
    headrace decisions follow --dry-run
    """
    from headrace.streams.cli import decisions_follow

    settings = where.settings()
    if dry_run:
        decisions_follow.dry_run(settings, exec_)
    elif exec_ is not None:
        decisions_follow.carry_out(settings, exec_, timeout_s=timeout, name=name)
    else:
        decisions_follow.print_decisions(settings, where.dgd, begin)
