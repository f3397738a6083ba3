"""`--help` is enough to use a command, and costs nothing."""

import subprocess
import sys

import click
import pytest

from headrace.streams.cli.main import COMMANDS, cli

HEAVY = ("numpy", "scipy", "nats", "filterpy", "httpx", "rich", "prometheus_client")

ASK = f"""
import sys
from headrace.streams.cli.main import cli
code = cli.main(args=sys.argv[1:], standalone_mode=False)
assert not code, code
print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules])
"""


def context_of(command: click.Command, name: str | None = None) -> click.Context:
    return click.Context(command, info_name=name, **cli.context_settings)


def walk(command: click.Command, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    """A command and everything below it, with the words that call it."""
    found = [(path, command)]
    if isinstance(command, click.Group):
        context = context_of(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            found += walk(child, (*path, name))
    return found


COMMAND_TREE = walk(cli, ())
LEAVES = [(path, command) for path, command in COMMAND_TREE if not isinstance(command, click.Group)]


def words(path: tuple[str, ...]) -> str:
    return " ".join(("headrace", *path))


@pytest.mark.parametrize("path", [(), *((name,) for name in COMMANDS)], ids=words)
def test_help_imports_nothing_heavy(path: tuple[str, ...]) -> None:
    result = subprocess.run([sys.executable, "-c", ASK, *path, "--help"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Usage: " in result.stdout
    assert result.stdout.splitlines()[-1] == "HEAVY []"


def test_the_check_for_heavy_imports_notices_one() -> None:
    code = ASK.replace("import sys\n", "import sys, rich\n", 1)
    result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "HEAVY ['rich']"


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[words(path) for path, _ in LEAVES])
def test_the_help_of_a_command_shows_it_called(path: tuple[str, ...], command: click.Command) -> None:
    assert f"\n  {words(path)}" in command.get_help(context_of(command, words(path)))


@pytest.mark.parametrize(("path", "command"), COMMAND_TREE[1:], ids=[words(path) for path, _ in COMMAND_TREE[1:]])
def test_every_option_says_what_it_does(path: tuple[str, ...], command: click.Command) -> None:
    silent = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert silent == []


def test_a_command_that_does_not_exist_is_answered_with_those_that_do() -> None:
    result = subprocess.run([sys.executable, "-m", "headrace", "decide"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "No such command 'decide'" in result.stderr
    assert "decisions" in result.stderr
