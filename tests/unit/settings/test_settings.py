"""Settings: where a value comes from, and what the sections become."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.schemas.errors import ConfigError
from headrace.streams.settings import FrontendSettings, Settings, load, settings
from headrace.streams.settings_file import read_file


@pytest.fixture
def write(tmp_path: Path):
    def to_file(**raw: Any) -> str:
        path = tmp_path / "planner.yaml"
        path.write_text(yaml.safe_dump(raw))
        return str(path)

    return to_file


def test_a_flag_wins_over_the_environment_and_that_over_the_file(write) -> None:
    path = write(ttft_ms=100, itl_ms=10, dgd="a/file")
    environ = {"HEADRACE_TTFT_MS": "200", "HEADRACE_ITL_MS": "20", "HEADRACE_DGD": "a/environment"}
    found = load(path, overrides={"ttft_ms": 300}, environ=environ)
    assert (found.planner.ttft_ms, found.planner.itl_ms, found.edges.dgd) == (300, 20, "a/environment")
    assert load(path, environ={}).edges.dgd == "a/file"


@pytest.mark.parametrize("in_file", ["ttft", "ttft_ms"])
@pytest.mark.parametrize("in_flag", ["ttft", "ttft_ms"])
def test_an_override_replaces_a_value_under_either_spelling(write, in_file: str, in_flag: str) -> None:
    found = load(write(**{in_file: 100}), overrides={in_flag: 300}, environ={})
    assert found.planner.ttft_ms == 300


def test_a_bus_may_be_one_word_or_a_section(write) -> None:
    word = load(write(bus="nats://one:4222"), environ={})
    assert word.edges.bus.url == settings({"bus": {"url": "nats://one:4222"}}).edges.bus.url == "nats://one:4222"
    assert settings({"bus": "nats://one:4222"}) == settings({"bus": {"url": "nats://one:4222"}})


def test_a_dotted_override_reaches_into_a_section_and_leaves_the_rest_of_it(write) -> None:
    path = write(bus="nats://one:4222", sources={"frontend": {"urls": ["http://a/metrics"]}})
    found = load(path, overrides={"bus.prefix": "test", "sources.frontend.interval_seconds": 9}, environ={})
    assert (found.edges.bus.url, found.edges.bus.prefix) == ("nats://one:4222", "test")
    assert found.edges.sources.frontend == FrontendSettings(urls=["http://a/metrics"], interval_seconds=9)


def test_a_dotted_override_makes_the_section_that_is_not_there(write) -> None:
    found = load(write(dgd="a/b", sources=None), overrides={"sources.inventory": {"decode": 2}}, environ={})
    assert found.edges.sources.inventory == {"decode": 2}


def test_the_environment_reaches_bus_and_metrics() -> None:
    environ = {
        "HEADRACE_BUS_URL": "nats://two:4222",
        "HEADRACE_BUS_PREFIX": "other",
        "PLANNER_PROMETHEUS_PORT": "9085",
        "HEADRACE_ADVISORY": "true",
        "HEADRACE_NOBODY_KNOWS": "x",
    }
    found = load(None, environ=environ)
    assert (found.edges.bus.url, found.edges.bus.prefix, found.edges.metrics.port) == ("nats://two:4222", "other", 9085)
    assert found.planner.advisory is True


def test_json_is_a_file_too_and_may_be_given_inline(tmp_path: Path) -> None:
    raw = {"ttft_ms": 123, "dgd": "ml/a"}
    path = tmp_path / "planner.json"
    path.write_text(json.dumps(raw))
    assert read_file(path) == read_file(json.dumps(raw)) == raw


def test_json_is_read_as_json(tmp_path: Path) -> None:  # to YAML, tabs are an error in it and 1e2 no number
    path = tmp_path / "planner_config.json"
    path.write_text('{\n\t"ttft_ms": 1e2,\n\t"sources": {"inventory": {"decode": 2}}\n}')
    assert read_file(path) == {"ttft_ms": 100.0, "sources": {"inventory": {"decode": 2}}}


def test_yaml_may_begin_with_a_brace() -> None:
    assert read_file("{ttft_ms: 3, dgd: a/b}") == {"ttft_ms": 3, "dgd": "a/b"}


def test_a_key_that_stands_twice_in_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="'ttft_ms' stands there twice"):
        read_file('{"ttft_ms": 1, "ttft_ms": 2}')


def test_the_file_is_named_in_what_is_said_about_it(write) -> None:
    path = write(ttft_ms=-1)
    with pytest.raises(ConfigError, match=path):
        load(path, environ={})


def namespace_of(**raw: Any) -> str:
    found: Settings = settings({"dgd": "ml/llama", **raw})
    return found.dynamo_namespace


def test_dynamos_namespace_is_as_configured_else_of_the_environment_else_the_name_of_the_dgd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DYN_NAMESPACE", raising=False)
    assert namespace_of() == "llama"
    monkeypatch.setenv("DYN_NAMESPACE", "from-environment")
    assert namespace_of(sources={"dynamo_fpm": {}}) == "from-environment"
    assert namespace_of(sources={"dynamo_fpm": {"namespace": "configured"}}) == "configured"
