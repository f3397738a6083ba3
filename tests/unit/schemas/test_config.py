"""The configuration: what is right, what is refused, and its page."""

import re
from pathlib import Path

import msgspec
import pytest

from headrace.schemas import configtable, generate
from headrace.schemas.config import ALIASES, FIELDS, PlannerConfig, Scheduling, planner_config, unknown_key
from headrace.schemas.config_reference import DEFAULTS, DIFFERENCES, REFERENCE_KEYS, SHARED, VERSIONS
from headrace.schemas.errors import ConfigError, HeadraceError
from headrace.streams.planner import Planner

SLA = {"optimization_target": "sla"}
LOAD = {
    "optimization_target": "load",
    "prefill_scale_up_queue_tokens": 4000,
    "prefill_scale_down_queue_tokens": 500,
    "decode_scale_up_kv_rate": 90,
    "decode_scale_down_kv_rate": 20,
}


def test_the_defaults_are_the_references():  # reference-semantics 1.2
    c = planner_config({})
    assert (c.mode, c.optimization_target, c.enable_throughput_scaling, c.enable_load_scaling) == (
        "disagg",
        "throughput",
        True,
        False,
    )
    assert (c.ttft_ms, c.itl_ms, c.max_gpu_budget, c.min_gpu_budget, c.min_endpoint) == (500.0, 50.0, 8, -1, 1)
    assert (c.throughput_adjustment_interval_seconds, c.load_adjustment_interval_seconds) == (180.0, 5.0)
    assert (c.load_scaling_down_sensitivity, c.load_min_observations, c.fpm_sample_bucket_size) == (80.0, 5, 16)
    assert (c.kalman_q_level, c.kalman_q_trend, c.kalman_r, c.kalman_min_points) == (1.0, 0.1, 10.0, 5)


def test_a_planner_can_be_made_from_the_defaults():
    assert Planner(planner_config({}), "ml/llama").next_tick_at == 5.0


@pytest.mark.parametrize(
    ("raw", "loops"),
    [
        ({}, (False, True)),
        ({"enable_load_scaling": False}, (False, True)),
        (SLA, (True, False)),
        (SLA | {"enable_load_scaling": True}, (True, True)),
        (SLA | {"enable_load_scaling": True, "enable_throughput_scaling": False}, (False, True)),
        ({"optimization_target": "latency"}, (False, True)),
        (LOAD, (False, True)),
    ],
)
def test_which_loops_run_follows_from_the_target_and_the_switches(raw, loops):  # reference-semantics 1.3
    config = planner_config(raw)
    assert (config.throughput_loop, config.load_loop) == loops


@pytest.mark.parametrize(
    ("raw", "base"),
    [
        ({}, 5.0),
        (SLA, 180.0),
        (SLA | {"enable_load_scaling": True}, 5.0),
        (SLA | {"enable_load_scaling": True, "load_adjustment_interval_seconds": 7}, 1.0),
        (SLA | {"enable_load_scaling": True, "scheduling": {"scale_interval_seconds": 2.5}}, 2.5),
        ({"load_adjustment_interval_seconds": 0.3}, 0.3),
    ],
)
def test_the_base_tick(raw, base):  # reference-semantics 1.4
    assert planner_config(raw).base_tick_seconds == base


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases_mean_their_name(alias, name):
    assert getattr(planner_config({alias: 170}), name) == 170


def test_the_least_count_of_a_role_has_its_own_or_the_common_one():
    config = planner_config({"min_endpoint": 2, "decode_min_endpoint": 0})
    assert (config.min_endpoint_of("prefill"), config.min_endpoint_of("decode")) == (2, 0)
    assert planner_config({"mode": "agg", "min_endpoint": 3}).min_endpoint_of("agg") == 3


def test_aggregated_engines_take_the_decode_gpus():
    assert planner_config({"mode": "agg", "decode_engine_num_gpu": 4, "min_endpoint": 1}).engine_num_gpu("agg") == 4


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        # case T33, dynamo#9369: a budget that the least fleet exceeds
        (
            {"max_gpu_budget": 3, "prefill_engine_num_gpu": 2, "decode_engine_num_gpu": 2},
            r"max_gpu_budget (3) is below the least fleet of 4 GPUs (1 prefill x 2 GPUs + 1 decode x 2 GPUs)",
        ),
        ({"max_gpu_budget": 0, "decode_engine_num_gpu": 1}, "(1 decode x 1 GPUs): raise it or lower min_endpoint"),
        ({"max_gpu_budget": 4, "min_gpu_budget": 5}, "min_gpu_budget (5) is above max_gpu_budget (4)"),
        ({"max_gpu_budget": 10**8}, "`$.max_gpu_budget`"),
        (SLA | {"enable_throughput_scaling": False}, "Enable one of them"),
        (
            SLA
            | {
                "enable_load_scaling": True,
                "load_adjustment_interval_seconds": 60,
                "throughput_adjustment_interval": 60,
            },
            "load_adjustment_interval_seconds (60) must be shorter than throughput_adjustment_interval_seconds (60)",
        ),
        ({"scheduling": {"scale_interval_seconds": 3}}, "must divide the adjustment interval of 5 s"),
        ({"scheduling": {"scale_interval_seconds": 10}}, "must divide the adjustment interval of 5 s"),
        ({"scheduling": {"scale_interval_seconds": 0.01}}, "a tick every 0.01 s is more than 100 ticks per"),
        ({"load_adjustment_interval_seconds": 0.0001}, "is not whole milliseconds: round it"),
        ({"load_adjustment_interval_seconds": 5.0005}, "is not whole milliseconds: round it"),
        (SLA | {"enable_load_scaling": True, "load_adjustment_interval_seconds": 5.001}, "larger common divisor"),
        ({"scheduling": {"interval": 3}}, "unknown field `interval`"),
        ({"mode": "agg", "prefill_min_endpoint": 2}, "mode 'agg' plans no prefill workers: remove it"),
        ({"mode": "prefill", "decode_min_endpoint": 2}, "mode 'prefill' plans no decode workers: remove it"),
        ({"optimization_target": "load"}, "needs prefill_scale_up_queue_tokens and prefill_scale_down_queue_tokens"),
        # case T28: thresholds that could never be told apart
        (
            LOAD | {"decode_scale_up_kv_rate": 20},
            "decode_scale_up_kv_rate (20) must be above decode_scale_down_kv_rate",
        ),
        (LOAD | {"decode_scale_up_kv_rate": 101}, "`float` <= 100.0"),
        ({"ttft_ms": 0}, "`float` > 0.0"),
        ({"ttft_ms": float("nan")}, "`$.ttft_ms`"),
        ({"ttft_ms": float("inf")}, "`$.ttft_ms`"),
        ({"prefill_scale_up_queue_tokens": float("inf")}, "`$.prefill_scale_up_queue_tokens`"),
        ({"ttft_ms": "500 ms"}, "Expected `float`, got `str`"),
        ({"itl_ms": -1}, "`$.itl_ms`"),
        ({"load_scaling_down_sensitivity": 101}, "<= 100.0"),
        ({"fpm_sample_bucket_size": 1}, ">= 2"),
        ({"min_endpoint": -1}, ">= 0"),
        ({"mode": "disaggregated"}, "Invalid enum value 'disaggregated'"),
        ({"ttft": 1, "ttft_ms": 1}, "ttft_ms and another spelling of ttft_ms are both given"),
        ({"ttft_mss": 1}, "unknown key 'ttft_mss': did you mean 'ttft_ms'?"),
        ({"zzz": 1}, "unknown key 'zzz': see docs/configuration.md"),
        ({"k" * 500: 1}, "unknown key 'kkk"),
        ({"adjustment_interval": 60}, "what says the same now: throughput_adjustment_interval_seconds"),
        ({"no-operation": True}, "is a flag of the planner of Dynamo 0.4; what says the same now: advisory: true"),
    ],
)
def test_what_cannot_be_right_is_refused_with_the_key_the_rule_and_the_remedy(raw, message):  # row 43, ray#63279
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        planner_config(raw)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "raw", [LOAD | {"mode": "decode", "prefill_scale_up_queue_tokens": None}, LOAD | {"mode": "prefill"}]
)
def test_target_load_needs_the_thresholds_of_planned_roles_alone(raw):
    assert planner_config(raw).load_loop


def test_a_full_kv_cache_can_be_a_threshold():  # case T28, ray#24793: what waits counts too, so it can be passed
    assert planner_config(LOAD | {"decode_scale_up_kv_rate": 100}).decode_scale_up_kv_rate == 100


def test_a_floor_between_two_replicas_is_allowed():  # case T31: it is kept as far as whole replicas fit
    assert planner_config({"min_gpu_budget": 5, "max_gpu_budget": 5, "decode_engine_num_gpu": 2}).min_gpu_budget == 5


def test_an_endless_key_takes_no_endless_time():
    assert len(unknown_key("x" * 10_000_000, FIELDS)) < 200


def test_a_configuration_survives_json():
    config = planner_config(SLA | {"scheduling": {"scale_interval_seconds": 60.0}})
    assert planner_config(msgspec.json.decode(msgspec.json.encode(config))) == config


# shared with the reference


def keys() -> set[str]:
    nested = {f"scheduling.{f.name}" for f in msgspec.structs.fields(Scheduling)}
    return {f.name for f in msgspec.structs.fields(PlannerConfig)} | nested


def test_what_is_shared_exists_and_what_the_reference_alone_has_does_not():
    assert SHARED - keys() == set()
    assert set(REFERENCE_KEYS) & keys() == set()
    assert set(DEFAULTS) - SHARED == set()
    assert set(VERSIONS) - SHARED == set()
    assert set(DIFFERENCES) - keys() == set()


# the page


def test_the_page_is_current(root: Path):  # row 72, dynamo#7303: defaults in documents go wrong by hand
    page = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    source = (root / "schemas" / "config.py").read_text(encoding="utf-8")
    assert page == configtable.fill(page, source), "run: python -m headrace.schemas.generate"
    assert root / "docs" / "configuration.md" in generate.expected(root / "schemas", root / "docs")


def test_the_page_names_every_key_once_with_its_default(root: Path):
    page = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    page = page[: page.index("## Keys that the reference alone has")]
    named = re.findall(r"^\| `([\w.]+)`[^|]*\|[^|]*\| `([^`]*)`", page, re.MULTILINE)
    assert sorted(name for name, _ in named) == sorted(keys() - {"scheduling"})
    defaults = {f.name: f.default for f in msgspec.structs.fields(PlannerConfig)}
    assert all(msgspec.json.decode(shown) == defaults[name] for name, shown in named if name in defaults)


def test_every_key_has_a_meaning(root: Path):
    source = (root / "schemas" / "config.py").read_text(encoding="utf-8")
    said = configtable.comments(source)
    for kind in (PlannerConfig, Scheduling):
        assert set(said[kind.__name__]) >= set(kind.__struct_fields__)


def test_a_stale_table_is_noticed(root: Path):
    page = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    source = (root / "schemas" / "config.py").read_text(encoding="utf-8")
    changed = source.replace("# the target for the time to first token", "# something else")
    assert configtable.fill(page, changed) != page


def test_a_part_that_nobody_makes_is_refused(root: Path):
    source = (root / "schemas" / "config.py").read_text(encoding="utf-8")
    with pytest.raises(HeadraceError, match="'other'"):
        configtable.fill("<!-- generated: other -->\n<!-- end -->", source)


def test_units_follow_from_names(root: Path):
    page = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    units = dict(re.findall(r"^\| `([\w.]+)`[^|]*\|[^|]*\|[^|]*\| ([\w ]*?) \|", page, re.MULTILINE))
    assert units["ttft_ms"] == "ms"
    assert units["scheduling.scale_interval_seconds"] == "s"
    assert units["max_gpu_budget"] == units["prefill_engine_num_gpu"] == "GPUs"
    assert units["min_endpoint"] == "replicas"
