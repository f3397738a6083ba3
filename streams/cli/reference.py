"""Writes docs/cli.md from the commands' own help.

python -m headrace.streams.cli.reference            write it
python -m headrace.streams.cli.reference --check    write nothing; exit status 1 if it is stale
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from headrace.streams.cli.main import EXIT_BUS, EXIT_CONFIG, EXIT_OTHER, cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
WIDTH = 100

_INTRO = f"""# Command line

<!-- Generated from the commands' own help by `python -m headrace.streams.cli.reference`; do not edit. -->

Every command says the same with `--help`. Options win over the environment, and that over the configuration file.
Lists are tables on a terminal and tab-separated values in a pipe; `--json` prints JSON. A command ends quietly when the
program behind its pipe ends, and in peace on Ctrl-C or SIGTERM.

| exit code | meaning |
| --- | --- |
| 0 | done |
| {EXIT_OTHER} | something was refused or failed; stderr says what |
| {EXIT_CONFIG} | the configuration or the command line is wrong; stderr names the key, the rule and the remedy |
| {EXIT_BUS} | the bus cannot be reached, or refused |
| 130 | interrupted |
"""


def page() -> str:
    """The text of docs/cli.md."""
    return _INTRO + "".join(_sections(cli, None, "headrace"))


def _sections(command: click.Command, parent: click.Context | None, name: str) -> Iterator[str]:
    look: dict[str, Any] = {**cli.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(command, parent=parent, info_name=name, **look)
    help_text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"\n## {context.command_path}\n\n```text\n{help_text}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _sections(found, context, child)


def main(arguments: list[str]) -> int:
    stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page()
    if not stale:
        return 0
    if "--check" in arguments:
        click.echo("docs/cli.md is stale: run python -m headrace.streams.cli.reference", err=True)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    click.echo("written: docs/cli.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
