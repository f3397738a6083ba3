"""Which DGDs one configuration plans, and with which settings each."""

from typing import Any

import pytest

from headrace.schemas.errors import ConfigError
from headrace.streams.fleet import Fleet
from headrace.streams.settings import settings


def fleet(**raw: Any) -> Fleet:
    return Fleet.of(settings(raw))


def test_without_more_than_one_dgd_a_fleet_is_that_one() -> None:
    found = fleet(dgd="ml/llama", ttft_ms=300)
    assert (found.names, found.patterns, found.alone) == (("ml/llama",), (), "ml/llama")
    assert found.settings_of("ml/llama") is found.common
    assert fleet().names == ("default/main",)


def test_an_entry_says_what_differs_from_the_top() -> None:
    found = fleet(
        dgds={"ml/a": {"ttft": 100}, "ml/b": None, "ml/*": {"mode": "agg"}},
        ttft_ms=300,
        executor={"dry_run": True},
        itl_ms=20,
    )
    assert found.names == ("ml/a", "ml/b")
    assert found.patterns == ("ml/*",)
    for dgd, ttft_ms, mode in (("ml/a", 100, "disagg"), ("ml/b", 300, "disagg"), ("ml/c", 300, "agg")):
        planned = found.settings_of(dgd)
        assert (planned.edges.dgd, planned.planner.ttft_ms, planned.planner.mode) == (dgd, ttft_ms, mode)
        assert planned.planner.itl_ms == 20
        assert planned.edges.executor is not None


def test_dgds_may_be_a_list_and_the_dgd_at_the_top_is_one_of_them() -> None:
    found = fleet(dgd="x/y", dgds=["ml/a", "ml/*"])
    assert (found.names, found.patterns) == (("x/y", "ml/a"), ("ml/*",))


def test_a_pattern_says_who_is_ours() -> None:
    found = fleet(dgds=["ml/*", "x/y"])
    assert [found.matches(dgd) for dgd in ("ml/a", "x/y", "x/z", "team/ml")] == [True, True, False, False]


def test_processes_with_one_dgd_are_a_group_of_their_own_and_those_with_many_share_one() -> None:
    one, other = fleet(dgd="ml/llama.v2").group, fleet(dgd="ml/llama_v2").group
    assert one != other
    assert one.startswith("ml_llama_v2-")
    assert fleet(dgds=["ml/*"]).group == fleet(dgds=["a/b", "c/d"]).group == "main"
    assert fleet(dgds=["ml/*"], shards={"group": "eu"}).group == "eu"


def test_among_many_the_dynamo_namespace_of_each_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_NAMESPACE", "dynamo")
    many = fleet(dgds=["ml/a", "ml/*"], sources={"dynamo_fpm": {"url": "nats://x:4222"}})
    assert [many.settings_of(dgd).dynamo_namespace for dgd in ("ml/a", "ml/b")] == ["a", "b"]
    assert fleet(dgd="ml/a", sources={"dynamo_fpm": {}}).common.dynamo_namespace == "dynamo"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"dgds": {"llama": {}}}, "dgds names 'llama': write NAMESPACE/NAME"),
        ({"dgds": {"*": {}}}, r"dgds has the pattern '\*'"),
        ({"dgds": {"ml/a": {"ttft_sm": 3}}}, r"dgds\.ml/a: .*ttft_ms"),
        ({"dgds": {"ml/a": {"bus": "nats://x"}}}, r"dgds\.ml/a: bus is for all DGDs"),
        ({"dgds": {"ml/a": {"ttft_ms": -1}}}, r"dgds\.ml/a: .*ttft_ms"),
        ({"dgds": {"ml/*": {"mode": "nonsense"}}}, r"dgds\.ml/\*: .*mode"),
        ({"dgds": ["ml/*"], "sources": {"frontend": {"urls": ["http://x"]}}}, r"sources\.frontend is of one DGD"),
        ({"dgds": ["ml/*"], "sources": {"dynamo_fpm": {"namespace": "n"}}}, r"dynamo_fpm\.namespace is of one DGD"),
        ({"shards": {"lease_seconds": 0.1}}, r"lease_seconds|0\.5"),
        ({"shards": {"partitions": 0}}, "partitions|>= 1"),
        ({"shards": {"group": "a b"}}, "group|regex"),
        ({"shards": {"parts": 3}}, "partitions"),
    ],
)
def test_what_cannot_be_planned_is_an_error_that_names_the_entry(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fleet(**raw)
