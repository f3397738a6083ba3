"""The planner of Dynamo 0.4 as a policy of a running planner: profiles, and how far off they were."""

from typing import Any

import pytest
from msgspec.structs import replace
from world import DGD, Stage, inventory

from headrace.models.profile.decode import decode_table
from headrace.models.profile.prefill import prefill_table
from headrace.models.scaling.correction import Engines, Factors, Load, sized
from headrace.schemas.config import planner_config
from headrace.schemas.engine_profiles import EngineProfiles, RoleProfile, Source
from headrace.schemas.errors import ConfigError
from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.schemas.profile import DecodeProfile, EngineProfile, PrefillProfile
from headrace.schemas.traffic import Distribution
from headrace.streams.planner import Planner
from headrace.streams.runtime.metrics import PlannerMetrics

T = 180.0
ISL = (100.0, 1000.0, 4000.0)
PREFILL = PrefillProfile(isl=ISL, ttft_s=(0.025, 0.070, 0.220), throughput_per_gpu=(4000.0, 14_000.0, 18_000.0))
USAGES, CONTEXTS = (0.05, 0.3, 0.6, 0.95), (500.0, 2000.0)
POINTS = [(u, c) for c in CONTEXTS for u in USAGES]
DECODE = DecodeProfile(
    kv_usage=tuple(u for u, _ in POINTS),
    context_length=tuple(c for _, c in POINTS),
    itl_s=tuple(0.005 + 0.02 * u for u, _ in POINTS),
    throughput_per_gpu=tuple(u * 1e5 / c / (0.005 + 0.02 * u) for u, c in POINTS),
    max_kv_tokens=1e5,
)


def of(**config: Any) -> Stage:
    """A planner of this policy, with profiles, two workers of each role, and GPUs as said."""
    stage = Stage.throughput(capacity_policy="correction", itl_ms=20, **config)
    return know(stage)


def know(stage: Stage, prefill: PrefillProfile | None = PREFILL, decode: DecodeProfile | None = DECODE) -> Stage:
    """Give a planner what a sweep has measured."""
    found = {"prefill": EngineProfile(prefill=prefill), "decode": EngineProfile(decode=decode)}
    roles = {role: RoleProfile(source=Source.FILES, profile=profile) for role, profile in found.items()}
    at = stage.planner._memory.profiles.at + 1.0
    stage.give(EngineProfiles(dgd=DGD, at=at, roles=roles), max(at, 1.0))
    return stage


def engines(stage: Stage) -> Engines:
    least = {role: stage.planner.config.min_endpoint_of(role) for role in ("prefill", "decode")}
    return Engines(
        prefill_table(PREFILL),
        decode_table(DECODE),
        gpus={"prefill": 1, "decode": 1},
        minimum=least,
        itl_sla_s=0.02,
    )


def latencies(requests: int, ttft_s: float, itl_s: float, duration_s: float | None = 3.0) -> dict[str, Any]:
    found = {
        "ttft_s": Distribution(count=requests, mean=ttft_s),
        "itl_s": Distribution(count=200 * requests, mean=itl_s),
    }
    if duration_s is not None:
        found["duration_s"] = Distribution(count=requests, mean=duration_s)
    return found


def interval(stage: Stage, at: float, requests: int | None, **more: Any) -> Any:
    """One throughput interval of traffic that ends at `at`, and the tick there."""
    stage.fleet(at - 1, prefill=2, decode=2)
    stage.traffic(at - T, at, requests, **more)
    return stage.tick(at)


def test_fleets_are_sized_by_profiles_and_factors():
    stage = of()
    said = interval(stage, T, 9000, **latencies(9000, 0.1, 0.012))
    table = decode_table(DECODE)
    factors = Factors(0.1 / prefill_table(PREFILL).ttft_s(1000), 0.012 / table.itl_s(9000 / 2 * 3 / T, 1100))
    wanted = sized(Load(50, 1000, 200), engines(stage), factors)
    assert said.targets == {role: verdict.replicas for role, verdict in wanted.items()}
    assert said.role("prefill").estimated["prefill_correction"] == pytest.approx(factors.prefill)
    assert said.role("decode").estimated["decode_correction"] == pytest.approx(factors.decode)
    assert {said.role(role).throughput_reason for role in ("prefill", "decode")} == {"scale"}


def test_no_engine_needs_to_send_a_metric():
    said = interval(of(), T, 9000, **latencies(9000, 0.1, 0.012))
    assert said.decision is not None
    assert "fpm" in said.role("decode").unknown


def test_a_duration_that_nobody_measures_follows_from_first_token_and_gaps():
    with_it = interval(of(), T, 9000, **latencies(9000, 0.1, 0.012, 0.1 + 0.012 * 199))
    without = interval(of(), T, 9000, **latencies(9000, 0.1, 0.012, None))
    assert without.role("decode").estimated == pytest.approx(with_it.role("decode").estimated)


def test_without_correction_the_profiles_are_believed():
    stage = of(no_correction=True)
    said = interval(stage, T, 9000, **latencies(9000, 5.0, 0.5))
    assert said.targets == {r: v.replicas for r, v in sized(Load(50, 1000, 200), engines(stage), Factors()).items()}
    assert said.role("decode").estimated["decode_correction"] == 1.0


def test_without_correction_latencies_that_nobody_knows_hold_nothing():
    assert interval(of(no_correction=True), T, 9000).decision is not None


# case T12, dynamo#12430: latencies seen while workers warm up must not grow a fleet beyond reason


def test_a_factor_asks_for_at_most_twice_what_the_profiles_ask_for():
    stage = of(max_throughput_scaling_replicas=1000)
    alone = sized(Load(50, 1000, 200), engines(stage), Factors())["decode"].replicas
    assert alone is not None
    said = interval(stage, T, 9000, **latencies(9000, 0.1, 2.0))
    role = said.role("decode")
    assert said.targets is not None
    assert said.targets["decode"] == 2 * alone
    assert role.throughput_reason == "correction_limit"
    assert role.estimated["uncorrected"] == alone
    assert role.estimated["unlimited"] > 2 * alone


def test_the_limit_does_not_grow_on_itself():
    stage = of(max_throughput_scaling_replicas=1000)
    targets = []
    for n in range(1, 4):
        said = interval(stage, n * T, 9000, **latencies(9000, 0.1, 2.0))
        targets.append(said.role("decode").target)
        if said.decision is not None:
            stage.apply(said, n * T + 1)
    assert len(set(targets)) == 1


# what is unknown


def test_an_interval_that_nobody_could_read_holds_both_and_keeps_the_factors():
    stage = of()
    interval(stage, T, 9000, **latencies(9000, 0.1, 0.012))
    before = stage.planner._memory.correction.factors
    said = interval(stage, 2 * T, None)
    assert {said.role(role).throughput_reason for role in ("prefill", "decode")} == {"no_traffic_data"}
    assert stage.planner._memory.correction.factors == before


def test_an_idle_interval_shrinks_to_the_least_and_teaches_nothing():  # case T1
    stage = of()
    interval(stage, T, 9000, **latencies(9000, 0.1, 0.012))
    before = stage.planner._memory.correction.factors
    said = interval(stage, 2 * T, 0)
    assert said.role("decode").throughput_reason == "scale"
    assert said.role("decode").floor == 1
    assert stage.planner._memory.correction.factors == before


def test_latencies_that_nobody_knows_hold_both():
    said = interval(of(), T, 9000)
    assert said.decision is None
    assert said.role("prefill").throughput_reason == "no_traffic_data"


def test_without_profiles_both_hold():
    stage = Stage.throughput(capacity_policy="correction")
    said = interval(stage, T, 9000, **latencies(9000, 0.1, 0.012))
    assert {said.role(role).throughput_reason for role in ("prefill", "decode")} == {"model_not_ready"}


def test_without_the_gpus_of_a_replica_both_hold():  # a profile is per GPU
    stage = of()
    stage.give(inventory(T - 1, None, prefill=2, decode=2), T - 1)
    stage.traffic(0, T, 9000, **latencies(9000, 0.1, 0.012))
    said = stage.tick(T)
    assert {said.role(role).throughput_reason for role in ("prefill", "decode")} == {"gpu_shape_unknown"}


def test_a_profile_that_spans_no_area_is_refused_and_the_one_before_stays():
    stage = of()
    line = decode_profile(kv_usage=(0.1, 0.2, 0.3), context_length=(500.0, 500.0, 500.0))
    know(stage, decode=line)
    assert any("lie on one line" in note for note in stage.planner.notes)
    assert interval(stage, T, 9000, **latencies(9000, 0.1, 0.012)).decision is not None


def decode_profile(**columns: Any) -> DecodeProfile:
    n = len(columns["kv_usage"])
    return DecodeProfile(itl_s=(0.01,) * n, throughput_per_gpu=(1.0,) * n, max_kv_tokens=1e5, **columns)


# beside the other loop, in a snapshot, in the metrics


def test_beside_the_load_loop_it_sets_floors_and_steps_are_limited():
    stage = of(enable_load_scaling=True, max_throughput_scaling_replicas=3)
    said = interval(stage, T, 36_000, **latencies(36_000, 0.1, 0.012))
    assert said.role("decode").throughput_reason == "set_lower_bound"
    assert said.role("decode").floor == 5
    assert said.targets is not None
    assert said.targets["decode"] == 5


def test_factors_and_profiles_survive_a_restart():
    stage = of()
    interval(stage, T, 9000, **latencies(9000, 0.1, 0.012))
    again = Stage(Planner.restore(stage.planner.snapshot()))
    assert again.planner._memory.correction.factors == stage.planner._memory.correction.factors
    for one in (stage, again):
        one.fleet(2 * T - 1, prefill=2, decode=2)
        one.traffic(T, 2 * T, 0)
    assert again.tick(2 * T).report == stage.tick(2 * T).report


def test_a_snapshot_from_before_this_policy_can_be_restored():
    planner = of().planner
    state = planner._memory.to_state()
    del state["correction"]
    assert planner._memory.from_state(state).correction.factors == Factors()


def test_the_factors_are_metrics():
    metrics = PlannerMetrics()
    metrics.take(interval(of(), T, 9000, **latencies(9000, 0.14, 0.012)).records)
    labels = {"dgd": "ml/llama", "role": "prefill"}
    assert metrics.registry.get_sample_value("headrace_planner_correction_factor", labels) == pytest.approx(2.0)


def test_decode_workers_are_those_that_serve():
    few, many = of(), of()
    for stage, ready in ((few, 1), (many, 8)):
        roles = {role: RoleInventory(ready=ready, gpus_per_replica=1) for role in ("prefill", "decode")}
        stage.give(WorkerInventory(dgd="ml/llama", source="test", observed_at=T - 1, roles=roles), T - 1)
        stage.traffic(0, T, 9000, **latencies(9000, 0.1, 0.012))
    factors = [s.tick(T).role("decode").estimated["decode_correction"] for s in (few, many)]
    assert factors[0] < factors[1]  # fewer workers run fuller batches, for which the profile has a longer ITL


# the configuration


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"optimization_target": "sla", "mode": "agg"},
        {"optimization_target": "sla", "enable_throughput_scaling": False},
    ],
    ids=str,
)
def test_a_policy_that_could_not_act_is_refused(raw):
    with pytest.raises(ConfigError, match="needs mode 'disagg', optimization_target 'sla'"):
        planner_config({"enable_load_scaling": True} | raw | {"capacity_policy": "correction"})


def test_the_policy_can_be_chosen_while_the_planner_runs():
    stage = know(Stage.throughput(capacity_policy="reference"))
    stage.planner._memory.configure(replace(stage.planner.config, capacity_policy="correction"))
    said = interval(stage, T, 9000, **latencies(9000, 0.1, 0.012))
    assert said.role("decode").estimated["decode_correction"] != 1.0
