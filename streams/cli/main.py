"""The command tree. A command's module is imported when it is called, so that `--help` costs nothing."""

import sys
from importlib import import_module
from typing import Any

import click

from headrace import __version__
from headrace.schemas.errors import BusError, ConfigError, HeadraceError

COMMANDS = {
    "demo": ("headrace.streams.cli.demo", "See it plan: a simulated hour in about two minutes."),
    "run": ("headrace.streams.cli.run", "Run the planners of DGDs, with their sources, on a bus."),
    "shards": ("headrace.streams.cli.shards", "Show which process plans what, and how far behind it is."),
    "simulate": ("headrace.streams.cli.simulate", "Plan a trace on a virtual clock: goodput, GPU-hours, fixed fleets."),
    "profile": ("headrace.streams.cli.profile", "Show what was measured of engines before they serve."),
    "forecast": ("headrace.streams.cli.forecast", "Judge forecasters on recorded load, and recommend one."),
    "decisions": ("headrace.streams.cli.decisions", "Follow, list and carry out decisions."),
    "streams": ("headrace.streams.cli.streams", "List the streams, or tail one."),
    "deadletters": ("headrace.streams.cli.deadletters", "List, show and requeue what could not be used."),
    "config": ("headrace.streams.cli.config", "Check a configuration file."),
    "schema": ("headrace.streams.cli.schema", "Print the schema of a record."),
}
EXIT_CONFIG, EXIT_BUS, EXIT_OTHER = 2, 3, 1


class Lazy(click.Group):
    """Commands that are looked up by name and imported when needed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`python -m headrace --config X`, as Dynamo's planner is started, means `run`."""
        given = args[0].partition("=")[0] if args else ""
        return super().parse_args(ctx, ["run", *args] if given in ("-c", "--config") else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            raise click.UsageError(f"{e.message} The commands are: {', '.join(COMMANDS)}.", ctx) from None


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="headrace")
def cli() -> None:
    """Headrace plans how many prefill and decode workers an LLM deployment needs, on a message bus.

    Telemetry comes in on streams, decisions go out on one, and whoever carries them out acknowledges them by id.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line; an expected error is one line on stderr and an exit code that tells its kind."""
    try:
        code: Any = cli.main(args=args, standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as e:
        e.show()
        sys.exit(e.exit_code)
    except HeadraceError as e:
        click.echo(f"headrace: {e}", err=True)
        sys.exit(_exit_code(e))
    except BrokenPipeError:
        sys.exit(0)  # `headrace streams tail | head` is a fine thing to do
    sys.exit(code if isinstance(code, int) else 0)


def _exit_code(e: HeadraceError) -> int:
    for kind, code in ((ConfigError, EXIT_CONFIG), (BusError, EXIT_BUS)):
        if isinstance(e, kind):
            return code
    return EXIT_OTHER
