from collections.abc import Callable
from typing import Any

import pytest

from headrace.connectors.simulator.config import SimulatorConfig, from_preset, parse
from headrace.connectors.simulator.timing import PRESETS, DecodeTiming, Limits, PrefillTiming, Timing, Transfer
from headrace.schemas.errors import ConfigError

TIMING = {"prefill": {"base_s": 0.01, "per_token_s": 2e-5}, "decode": {"base_s": 0.005}}


def test_a_mixed_iteration_without_one_half_takes_the_time_of_the_other() -> None:
    timing = Timing(
        prefill=PrefillTiming(base_s=0.01, per_token_s=2e-5, per_kv_token_s=1e-7),
        decode=DecodeTiming(base_s=0.005, per_request_s=5e-5, per_kv_token_s=1e-7),
    )
    assert timing.seconds(1000, 500, 0, 0) == timing.prefill.seconds(1000, 500)
    assert timing.seconds(0, 0, 8, 9000) == timing.decode.seconds(8, 9000)


def test_a_mixed_iteration_reads_the_weights_once() -> None:
    timing = Timing(prefill=PrefillTiming(base_s=0.01, per_token_s=2e-5), decode=DecodeTiming(base_s=0.005))
    assert timing.seconds(1000, 0, 8, 9000) == pytest.approx(0.01 + 0.02)


def test_a_transfer_takes_its_latency_and_its_tokens() -> None:
    assert Transfer(latency_s=0.002, tokens_per_s=100_000.0).seconds(1000) == pytest.approx(0.012)
    assert Transfer().seconds(1000) == 0.0


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_deployment(name: str) -> None:
    config = from_preset(name, {"prefill": 2, "decode": 3})
    assert config.fleet == {"prefill": 2, "decode": 3}
    assert config.timing.prefill.seconds(1000) > config.timing.decode.seconds(1, 1000) / 10


def test_an_unknown_preset_names_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="mocker"):
        from_preset("h900", {"agg": 1})


def test_another_fleet_changes_replicas_alone(disagg: Callable[..., SimulatorConfig]) -> None:
    config = disagg(1, 1)
    assert config.with_fleet({"prefill": 4}).fleet == {"prefill": 4, "decode": 1}
    assert config.with_fleet({"prefill": 1}) == config


def test_the_subject_is_the_one_that_dynamos_workers_publish_on(disagg: Callable[..., SimulatorConfig]) -> None:
    config = disagg(dynamo_namespace="my-ns")
    assert config.subject("decode") == "namespace.my-ns.component.backend.endpoint.generate.forward-pass-metrics"
    assert config.subject("prefill") == "namespace.my-ns.component.prefill.endpoint.generate.forward-pass-metrics"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"roles": {"prefill": {}}}, "agg alone"),
        ({"roles": {"agg": {}, "decode": {}, "prefill": {}}}, "agg alone"),
        ({"roles": {"agg": {"replicas": -1}}}, "replicas"),
        ({"roles": {"agg": {"limits": {"max_kv_tokens": 0}}}}, "max_kv_tokens"),
        ({"roles": {"agg": {"limits": {"max_num_seqs": 100, "max_num_batched_tokens": 50}}}}, "max_num_seqs"),
        ({"timing": {"prefill": {"base_s": -1, "per_token_s": 0}, "decode": {"base_s": 1}}}, "timing"),
        ({"timing": {"prefill": {"base_s": 0, "per_token_s": 0}, "decode": {"base_s": 1}}}, "base_s"),
        ({"transfer": {"tokens_per_s": 0.0}}, "tokens_per_s"),
        ({"sla": {"ttft_ms": 0.0}}, "ttft_ms"),
        ({"heartbeat_s": 0.0}, "heartbeat_s"),
        ({"dgd": "no-namespace"}, "dgd"),
        ({"router": "random"}, "router"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_a_configuration_that_cannot_be_right_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    good = {"roles": {"agg": {}}, "timing": TIMING}
    assert parse(good).fleet == {"agg": 1}
    with pytest.raises(ConfigError, match=says):
        parse(good | change)


def test_limits_default_to_the_mockers() -> None:
    assert Limits() == PRESETS["mocker"].limits
