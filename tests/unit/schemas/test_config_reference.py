"""A configuration of the reference planner runs unchanged: names, spellings, defaults and units of both versions."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.config import ALIASES, FIELDS, planner_config
from headrace.schemas.config_notes import config_notes, unit_traps
from headrace.schemas.config_reference import BOTH, NEW, OLD, REFERENCE_KEYS, SHARED, VERSIONS, accepted, split
from headrace.schemas.errors import ConfigError
from headrace.streams.planner import Planner
from headrace.streams.settings import settings

# What the planner of 1.4.2 writes down when it is asked for a whole configuration: the JSON that a DGDR generates.
OF_142: dict[str, Any] = {
    "pre_deployment_sweeping_mode": "rapid",
    "environment": "kubernetes",
    "backend": "vllm",
    "mode": "disagg",
    "optimization_target": "sla",
    "log_dir": None,
    "throughput_adjustment_interval_seconds": 180,
    "max_gpu_budget": 16,
    "min_gpu_budget": -1,
    "min_endpoint": 1,
    "decode_engine_num_gpu": 4,
    "prefill_engine_num_gpu": 2,
    "profile_results_dir": "/workspace/profiling_results",
    "aic_interpolation": {
        "hf_id": "Qwen/Qwen3-32B",
        "system": "h200_sxm",
        "backend": "vllm",
        "isl": 3000,
        "osl": 150,
        "sweep_max_context_length": 16384,
        "prefill_interpolation_granularity": 16,
        "decode_interpolation_granularity": 6,
        "prefill_pick": {"tp": 2, "pp": 1, "dp": 1, "moe_tp": 1, "moe_ep": 1},
        "decode_pick": {"tp": 4, "pp": 1, "dp": 1, "moe_tp": 1, "moe_ep": 1},
    },
    "aic_perf_model": {
        "hf_id": "Qwen/Qwen3-32B",
        "system": "h200_sxm",
        "backend": "vllm",
        "prefill_pick": {"tp": 2, "pp": 1, "dp": 1, "moe_tp": 1, "moe_ep": 1},
        "decode_pick": {"tp": 4, "pp": 1, "dp": 1, "moe_tp": 1, "moe_ep": 1},
    },
    "ttft_ms": 300.0,
    "itl_ms": 20.0,
    "load_predictor": "constant",
    "load_predictor_log1p": False,
    "load_predictor_warmup_trace": None,
    "prophet_window_size": 50,
    "kalman_q_level": 1.0,
    "kalman_q_trend": 0.1,
    "kalman_r": 10.0,
    "kalman_min_points": 5,
    "metric_reporting_prometheus_port": 9085,
    "throughput_metrics_source": "frontend",
    "model_name": "Qwen/Qwen3-32B",
    "global_planner_namespace": None,
    "enable_throughput_scaling": True,
    "enable_load_scaling": True,
    "load_adjustment_interval_seconds": 5,
    "max_num_fpm_samples": 64,
    "fpm_sample_bucket_size": 16,
    "load_scaling_down_sensitivity": 80,
    "prefill_scale_up_queue_tokens": None,
    "prefill_scale_down_queue_tokens": None,
    "decode_scale_up_kv_rate": None,
    "decode_scale_down_kv_rate": None,
    "load_min_observations": 5,
    "speculative_nextn": 0,
    "advisory": False,
    "report_interval_hours": 24.0,
    "report_output_dir": "./planner_reports",
    "report_filename": None,
    "report_write_gzip_log": True,
    "live_dashboard_port": 8080,
    "scheduling": {
        "tick_max_duration_seconds": 30.0,
        "external_plugins": [],
        "gateway": {
            "enabled": False,
            "listen": "unix:///var/run/dynamo/planner/registry.sock",
            "allow_insecure": False,
        },
        "scale_interval_seconds": 5.0,
    },
    "plugin_registration": {
        "auth": {"trusted_sources": [], "static_secrets": {}},
        "transport": {
            "allow_insecure_grpc": False,
            "request_timeout_seconds": 5.0,
            "keepalive_time_ms": 30000,
            "max_message_size_bytes": 10485760,
        },
        "protocol_version_min": "1.0",
        "protocol_version_max": "1.0",
        "heartbeat_timeout_seconds": 15.0,
        "heartbeat_missed_threshold": 2,
        "in_process_plugins": [],
        "admin": {"mode": "allow_all"},
    },
}
OF_161: dict[str, Any] = {key: value for key, value in OF_142.items() if key != "aic_perf_model"} | {
    "max_throughput_scaling_replicas": 8,
    "prefill_min_endpoint": None,
    "decode_min_endpoint": 2,
    "control_api_port": 9086,
    "ais_perf_model": {"roles": {"prefill": {"tp": 2}, "decode": {"tp": 4}}},
    "enable_power_awareness": False,
    "total_gpu_power_limit": None,
}
# Excluded from what they write down, and still taken from a file.
OF_BOTH_UNWRITTEN = {
    "namespace": "ml-llama",
    "metric_pulling_prometheus_endpoint": "http://prometheus:9090",
    "metric_pulling_prometheus_token": "t",
    "metric_pulling_prometheus_token_file": "/var/run/token",
    "metric_pulling_prometheus_ssl_verify": True,
    "metric_pulling_prometheus_extra_query_params": {"tenant": "a"},
    "metric_pulling_prometheus_ca_bundle": "/ca.pem",
}
OF_161_UNWRITTEN = {"metric_pulling_prometheus_request_timeout_seconds": 10.0}


def notes_of(raw: dict[str, Any]) -> list[str]:
    config = planner_config(raw)
    return list(config_notes(config, raw.keys(), accepted(split(raw)[1], advisory=config.advisory)))


@pytest.mark.parametrize(
    "raw",
    [OF_142, OF_161, OF_142 | OF_BOTH_UNWRITTEN, OF_161 | OF_BOTH_UNWRITTEN | OF_161_UNWRITTEN],
    ids=["1.4.2", "1.6.1", "all of 1.4.2", "all of 1.6.1"],
)
def test_the_json_that_a_dgdr_generates_is_taken_unchanged(raw):
    config = planner_config(json.loads(json.dumps(raw)))
    assert (config.ttft_ms, config.itl_ms, config.max_gpu_budget) == (300.0, 20.0, 16)
    assert (config.throughput_loop, config.load_loop, config.base_tick_seconds) == (True, True, 5.0)
    assert (config.engine_num_gpu("prefill"), config.engine_num_gpu("decode")) == (2, 4)
    assert Planner(config, "ml/llama").next_tick_at == 5.0


def test_every_key_of_both_versions_is_known_and_has_its_version():
    of_142 = set(OF_142) | set(OF_BOTH_UNWRITTEN)
    of_161 = set(OF_161) | set(OF_BOTH_UNWRITTEN) | set(OF_161_UNWRITTEN)
    nested = {f"scheduling.{name}" for name in OF_142["scheduling"]}
    versions = {name: VERSIONS.get(name, BOTH) for name in SHARED} | {n: k.versions for n, k in REFERENCE_KEYS.items()}
    expected = dict.fromkeys(of_161 - of_142, NEW) | dict.fromkeys(of_142 - of_161, OLD)
    expected |= dict.fromkeys(of_142 & of_161 | nested, BOTH)
    assert versions == expected


def test_every_value_that_the_reference_has_by_default_is_accepted():
    for name, key in REFERENCE_KEYS.items():
        assert accepted({name: key.default}) == {name: key.default}


def test_numbers_and_switches_may_be_in_quotes_as_there():
    config = planner_config({"ttft_ms": "300", "max_gpu_budget": "16", "advisory": "true", "log_dir": None})
    assert (config.ttft_ms, config.max_gpu_budget, config.advisory) == (300.0, 16, True)


def test_any_negative_budget_is_none_as_there():
    config = planner_config({"max_gpu_budget": -5, "min_gpu_budget": -2})
    assert max(config.max_gpu_budget, config.min_gpu_budget) < 0


@pytest.mark.parametrize("load_s", [5, 7])
def test_a_base_tick_that_the_reference_chose_is_taken(load_s):  # it counts the load loop in, whether it runs or not
    raw = {"optimization_target": "sla", "load_adjustment_interval_seconds": load_s}
    base = {5: 5.0, 7: 1.0}[load_s]
    assert planner_config(raw | {"scheduling": {"scale_interval_seconds": base}}).base_tick_seconds == base


# what stands in the place of the others


def test_a_configuration_at_the_defaults_of_the_reference_gets_one_line_about_all_of_them():
    raw = {name: key.default for name, key in REFERENCE_KEYS.items() if "." not in name}
    notes = [note for note in notes_of(raw) if "load_predictor" not in note and "capacity_policy" not in note]
    assert len(notes) == 1
    assert notes[0].startswith("accepted without effect: environment, backend")
    assert "namespace" not in notes[0].replace("global_planner_namespace", "")  # it is used


def test_a_key_that_was_set_to_something_is_told_what_stands_in_its_place():
    raw = {"metric_pulling_prometheus_endpoint": "http://prometheus:9090", "control_api_port": 9000}
    assert [note for note in notes_of(raw) if note.startswith(tuple(raw))] == [
        "metric_pulling_prometheus_endpoint: traffic comes from sources.frontend, which scrapes the frontends",
        "control_api_port: publish a configuration revision on the config stream",
    ]


def test_no_note_holds_a_secret():
    raw = {
        "metric_pulling_prometheus_token": "s3cret",
        "plugin_registration": {"auth": {"static_secrets": {"k": "v3"}}},
    }
    assert not [note for note in notes_of(raw) if "s3cret" in note or "v3" in note]


DANGEROUS = [
    {"environment": "global-planner", "global_planner_namespace": "pool"},
    {"enable_power_awareness": True, "total_gpu_power_limit": 9000},
    {"scheduling": {"external_plugins": [{"plugin_id": "cap"}]}},
    {"scheduling": {"gateway": {"enabled": True}}},
    {"plugin_registration": {"in_process_plugins": [{"module": "m"}]}},
]


@pytest.mark.parametrize("raw", DANGEROUS, ids=[next(iter(raw)) for raw in DANGEROUS])
def test_what_would_change_decisions_is_refused_and_only_mentioned_where_nobody_acts(raw):
    with pytest.raises(ConfigError, match="with `advisory: true` it would be ignored"):
        planner_config(raw)
    assert [note for note in notes_of(raw | {"advisory": True}) if "this planner only advises" in note]


def test_a_revision_with_keys_of_the_reference_says_in_the_next_report_what_they_mean():
    from headrace.schemas.config_revision import ConfigRevision

    planner = Planner(planner_config({}), "ml/llama")
    revision = ConfigRevision(dgd="ml/llama", revision=1, at=1.0, config={"ttft": 0.5, "control_api_port": 9000})
    planner.handle(revision, 1.0)
    assert planner.config_revision == 1
    assert any("control_api_port: publish a configuration revision" in note for note in planner.notes)
    assert any("ttft_ms is 0.5 milliseconds" in note for note in planner.notes)


# units


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"ttft": 0.5, "itl": 0.05}, ["ttft_ms is 0.5 milliseconds", "itl_ms is 0.05 milliseconds"]),
        ({"ttft_ms": 0.2}, ["ttft_ms is 0.2 milliseconds"]),
        ({"ttft_ms": 5, "itl_ms": 1}, []),
    ],
)
def test_seconds_in_the_place_of_milliseconds_are_noticed(raw, said):
    found = list(unit_traps(planner_config(raw)))
    assert [note.partition(";")[0] for note in found] == said
    assert all("Dynamo 0.4 spoke seconds" in note for note in found)


# defaults that differ


def test_a_default_that_differs_is_told_only_where_nobody_has_chosen_and_it_matters():
    def about(raw: dict[str, Any]) -> list[str]:
        return [note.partition(" ")[0] for note in notes_of(raw) if " by default, where the reference" in note]

    theirs = {"optimization_target": "sla", "backend": "vllm"}
    assert "load_predictor" in about(theirs)
    assert "load_predictor" not in about(theirs | {"load_predictor": "constant"})
    assert about({"backend": "vllm"}) == []  # without target `sla` nothing is forecast


def test_a_configuration_with_no_key_of_the_reference_alone_is_not_compared_with_it():
    assert [note for note in notes_of({"optimization_target": "sla"}) if "where the reference" in note] == []


# what they become at the edges


def test_model_namespace_and_port_reach_the_sections_that_do_not_say_them():
    edges = {"sources": {"dynamo_fpm": {}, "frontend": {"urls": ["http://f:8000/metrics"]}}}
    found = settings(OF_142 | OF_BOTH_UNWRITTEN | edges)
    assert found.edges.sources.frontend is not None
    assert found.edges.sources.frontend.model == "Qwen/Qwen3-32B"
    assert found.dynamo_namespace == "ml-llama"
    assert found.edges.metrics.port == 9085


def test_a_section_that_says_them_wins():
    frontend = {"urls": ["http://f:8000/metrics"], "model": "mine"}
    own = {"sources": {"dynamo_fpm": {"namespace": "ours"}, "frontend": frontend}, "metrics": {"port": 7}}
    found = settings(OF_142 | OF_BOTH_UNWRITTEN | own)
    assert found.edges.sources.frontend is not None
    assert (found.edges.sources.frontend.model, found.dynamo_namespace) == ("mine", "ours")
    assert found.edges.metrics.port == 7


def test_the_configuration_of_a_recorded_run_of_the_reference_is_taken(shared: Path):
    raw = json.loads((shared / "data" / "captures" / "planner_e2e_config.json").read_text(encoding="utf-8"))
    found = settings(raw)
    assert found.planner.optimization_target == "load"
    assert found.planner.decode_scale_up_kv_rate == 40.0
    assert found.dynamo_namespace == "dynamo"


def test_no_key_is_both_ours_and_the_references():
    assert set(REFERENCE_KEYS).isdisjoint({*FIELDS, *ALIASES})
