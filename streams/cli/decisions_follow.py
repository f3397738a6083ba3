"""Decisions as they come: printed for another program, said as a dry run, or carried out by a command."""

import asyncio
from contextlib import aclosing

import click

from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.command import CommandExecutor, CommandOptions
from headrace.connectors.executors.dry_run import DryRunExecutor, line
from headrace.connectors.executors.follow import follow
from headrace.connectors.executors.outcome import Outcome
from headrace.schemas.codec import decode, plain
from headrace.schemas.decision import Decision
from headrace.schemas.errors import RecordError
from headrace.schemas.streams import ACKS, DECISIONS
from headrace.streams.cli import output
from headrace.streams.cli.connect import Client, make_sure, open_bus, run_until_stopped
from headrace.streams.cli.streams_tail import Tail, messages
from headrace.streams.settings import Settings


def print_decisions(settings: Settings, dgd: str | None, begin: str | int | None) -> None:
    """One line of JSON for each decision, of one DGD or of all; what cannot be read is said on stderr."""

    async def main(stop: asyncio.Event) -> None:
        async with open_bus(settings, Client("follow")) as records:
            await make_sure(records.bus, [DECISIONS])
            async with aclosing(messages(records.bus, DECISIONS, Tail(DECISIONS.name, dgd, begin), stop)) as found:
                async for message in found:
                    try:
                        output.write(output.to_json(plain(decode(DECISIONS, message.data))))
                    except RecordError as e:
                        click.echo(f"headrace: decision at position {message.position} passed over: {e}", err=True)

    run_until_stopped(main)


def dry_run(settings: Settings, command: str | None) -> None:
    """One line of text for each decision of one DGD: what an executor would do with it."""
    argv = None if command is None else CommandOptions.parse(command).argv

    def say(text: str) -> None:
        runs = "" if argv is None or ": would scale" not in text else f"; would run {' '.join(argv)}"
        output.write(output.printable(text + runs))

    async def main(stop: asyncio.Event) -> None:
        async with open_bus(settings, Client("dry-run")) as records:
            await make_sure(records.bus, [DECISIONS])
            _begin(settings, "would be done")
            await DryRunExecutor(DecisionClient(records, settings.edges.dgd, "dry-run"), say=say).run(stop)

    run_until_stopped(main)


def carry_out(settings: Settings, command: str, *, timeout_s: float, name: str) -> None:
    """Run a command for each decision of one DGD and acknowledge it; say both in a line of text."""
    options = CommandOptions.parse(command, timeout_s)

    async def main(stop: asyncio.Event) -> None:
        async with open_bus(settings, Client(f"executor-{name}")) as records:
            await make_sure(records.bus, [DECISIONS, ACKS])
            client = DecisionClient(records, settings.edges.dgd, name)
            executor = CommandExecutor(client, options)

            async def act(decision: Decision) -> Outcome | None:
                output.write(output.printable(line(decision, None).replace(": would scale", ": scaling")))
                outcome = await executor.apply(decision, stop)
                output.write(output.printable(_ended(decision, outcome)))
                return outcome

            _begin(settings, f"is done, by {command}")
            await follow(client, act, stop)

    run_until_stopped(main)


def _begin(settings: Settings, what: str) -> None:
    """Whose decisions are waited for: a wrong deployment would look like one that is never scaled."""
    click.echo(f"headrace: what is decided for {settings.edges.dgd} {what}; Ctrl-C ends", err=True)


def _ended(decision: Decision, outcome: Outcome | None) -> str:
    name = f"{decision.dgd} decision {decision.decision_id} of epoch {decision.epoch}"
    if outcome is None:
        return f"{name}: stopped, left unsettled"
    counts = ", ".join(f"{role} {n}" for role, n in sorted(outcome.counts.items()))
    return (
        f"{name}: {outcome.status}"
        + (f" ({counts})" if counts else "")
        + (f": {outcome.message}" if outcome.message else "")
    )
