"""`headrace schema`: records by any of their names."""

import json

import pytest
import yaml
from click.testing import CliRunner

from headrace.schemas.codec import plain
from headrace.schemas.errors import ConfigError
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.streams import STREAMS
from headrace.streams.cli.main import cli
from headrace.streams.cli.schema import find


def run(*args: str) -> str:
    return CliRunner().invoke(cli, ["schema", *args], catch_exceptions=False).stdout


def test_without_a_name_every_record_is_listed() -> None:
    lines = [line.split("\t") for line in run().splitlines()]
    assert lines[0] == ["record", "schema", "stream", "codec", "what"]
    assert {line[2] for line in lines[1:]} == {*STREAMS, "-"}
    assert ["Decision", "headrace.decision.v1", "decisions", "json", STREAMS["decisions"].what] in lines


def test_the_list_may_be_json() -> None:
    assert {row["stream"] for row in json.loads(run("--json"))} == {*STREAMS, None}


@pytest.mark.parametrize(
    "name", ["decisions", "Decision", "headrace.decision.v1", "decision", "decision.v1", "DECISIONS"]
)
def test_a_record_has_many_names(name: str) -> None:
    assert json.loads(run(name))["$id"] == "urn:headrace:schema:headrace.decision.v1"


@pytest.mark.parametrize(
    ("name", "schema"),
    [("fpm", "headrace.fpm_batch.v1"), ("Fpm", "dynamo.fpm.v1"), ("dynamo.fpm.v1", "dynamo.fpm.v1")],
)
def test_our_stream_and_dynamos_record_are_told_apart_by_case(name: str, schema: str) -> None:
    assert json.loads(run(name))["$id"] == f"urn:headrace:schema:{schema}"


@pytest.mark.parametrize("stream", STREAMS)
def test_every_stream_has_a_schema_and_an_example_of_it(stream: str) -> None:
    assert json.loads(run(stream))["title"] == STREAMS[stream].record.__name__
    assert json.loads(run(stream, "--example")) == plain(EXAMPLES[stream])


def test_a_typing_error_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'decisions'"):
        find("desicions")


def test_a_name_like_no_other_is_answered_with_where_to_look() -> None:
    with pytest.raises(ConfigError, match="`headrace schema` lists them"):
        find("zzzzzz")


def test_dynamos_own_record_has_its_example_inside_ours() -> None:
    result = CliRunner().invoke(cli, ["schema", "dynamo.fpm.v1", "--example"])
    assert isinstance(result.exception, ConfigError)
    assert "headrace schema fpm --example" in str(result.exception)


def test_asyncapi_describes_every_stream() -> None:
    document = yaml.safe_load(run("--asyncapi"))
    assert document["asyncapi"] == "3.0.0"
    assert set(STREAMS) <= set(document["channels"])


@pytest.mark.parametrize("args", [["--asyncapi", "decisions"], ["--example"], ["--asyncapi", "--example"]])
def test_options_that_do_not_go_together_are_refused(args: list[str]) -> None:
    result = CliRunner().invoke(cli, ["schema", *args])
    assert result.exit_code == 2
    assert "Usage" in result.stderr
