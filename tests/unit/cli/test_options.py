"""The options that commands share, and who wins."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.schemas.errors import ConfigError
from headrace.streams.cli.options import Where, pairs, where_options


@click.command()
@where_options
@click.option("--own")
def probe(where: Where, own: str | None) -> None:
    found = where.settings()
    click.echo(f"{found.edges.bus.url} {found.edges.dgd} {found.planner.ttft_ms:g} {where.dgd} {own}")


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "planner.yaml"
    path.write_text("bus: nats://file:4222\ndgd: file/main\nttft_ms: 100\n")
    return str(path)


def said(*args: str, **environment: str) -> list[str]:
    result = CliRunner(env=environment).invoke(probe, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.split()


def test_without_anything_the_defaults_hold() -> None:
    assert said() == ["embedded", "default/main", "500", "None", "None"]


def test_the_file_wins_over_the_defaults(config: str) -> None:
    assert said("-c", config) == ["nats://file:4222", "file/main", "100", "None", "None"]


def test_the_file_may_be_named_by_the_environment(config: str) -> None:
    assert said(HEADRACE_CONFIG=config)[0] == "nats://file:4222"


def test_the_environment_wins_over_the_file(config: str) -> None:
    found = said("-c", config, HEADRACE_BUS_URL="nats://env:4222", HEADRACE_DGD="env/main", HEADRACE_TTFT_MS="200")
    assert found == ["nats://env:4222", "env/main", "200", "env/main", "None"]


def test_flags_win_over_the_environment(config: str) -> None:
    flags = ["--bus", "nats://flag:4222", "--dgd", "flag/main", "--set", "ttft_ms=300", "--own", "x"]
    found = said("-c", config, *flags, HEADRACE_BUS_URL="nats://env:4222", HEADRACE_DGD="env/x", HEADRACE_TTFT_MS="200")
    assert found == ["nats://flag:4222", "flag/main", "300", "flag/main", "x"]


def test_set_reaches_into_sections() -> None:
    assert said("--set", "bus.url=nats://set:4222")[0] == "nats://set:4222"


def test_a_value_of_set_is_yaml() -> None:
    sets = ("a=1", "b=true", "c=[1, 2]", "d=", "e=x=y", " f = text ")
    assert pairs(sets) == {"a": 1, "b": True, "c": [1, 2], "d": None, "e": "x=y", "f": "text"}


@pytest.mark.parametrize("text", ["ttft_ms", "=5", " = 5", "a: b"])
def test_set_without_a_key_or_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write KEY=VALUE"):
        pairs((text,))


def test_set_with_a_value_that_is_no_yaml_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="quote it"):
        pairs(("executor.exec=[",))
