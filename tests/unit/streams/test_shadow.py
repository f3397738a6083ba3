"""The reference planner beside ours: its opinion is in the tick report, and nothing else changes."""

from typing import Any

import msgspec
import pytest
from world import DGD, MIXED_LOADS, PREFILL_SIZES, Said, Stage, decode_s, held, mixed_s, prefill_s, proposal, queued

from headrace.schemas.config import planner_config
from headrace.schemas.engine_profiles import EngineProfiles, RoleProfile
from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import EngineProfile, PrefillProfile
from headrace.schemas.tick_report import ReferenceOpinion
from headrace.streams.planner import Planner


def shadowed(**config: Any) -> Stage:
    return Stage.load(shadow_reference=True, load_predictor="constant", **config)


def watch(s: Stage, ticks: int, queue: int, kv: int, *, fleet: int = 2) -> list[Said]:
    """Ticks in which engines of varying load are seen, so that speed is learned; then the load in question."""
    said = []
    for i in range(ticks + 1):
        at = s.planner.next_tick_at
        s.fleet(at, prefill=fleet, decode=fleet)
        tokens, batch, held_kv = 100 + 300 * i, 1 + i, 500 + 1700 * i
        last = i == ticks
        prefills = [
            queued(queue) if last else {"prefill": (1, tokens + k), "wall": prefill_s(tokens + k)} for k in range(fleet)
        ]
        decodes = [
            held(kv) if last else {"decode": (batch, held_kv + k), "wall": decode_s(batch, held_kv + k)}
            for k in range(fleet)
        ]
        s.engines("prefill", at, *prefills)
        s.engines("decode", at, *decodes)
        said.append(s.tick())
    return said


def opinion(said: Said, role: str) -> ReferenceOpinion:
    found = said.role(role).reference
    assert found is not None
    return found


def test_without_it_a_report_says_nothing_of_the_reference() -> None:
    assert Stage.load().tick().role("prefill").reference is None


def test_it_learns_from_the_newest_fpm_of_each_tick_and_then_has_an_opinion() -> None:
    s = shadowed()
    said = watch(s, 6, queue=4000, kv=5000)
    assert opinion(said[0], "prefill").load_reason == "insufficient_data"
    assert opinion(said[-1], "prefill").load_reason == "scale_up"
    assert opinion(said[-1], "prefill").target == 3
    assert opinion(said[-1], "prefill").estimated["ttft_ms"] > 100
    assert opinion(said[-1], "decode").target == 1


def test_its_mistakes_are_shown_where_ours_are_not_made() -> None:
    """Below the time of a lone prompt it adds replicas to idle engines; ours says that they cannot help."""
    s = shadowed(ttft_ms=12, advisory=True).teach()
    said = watch(s, 6, queue=0, kv=5000)
    assert opinion(said[-1], "prefill").target == 3
    assert said[-1].role("prefill").reason == "scale_up_cannot_help"


def test_while_anything_moves_it_holds_every_role() -> None:
    s = shadowed()
    watch(s, 6, queue=0, kv=5000)
    at = s.planner.next_tick_at
    s.fleet(at, prefill=2, decode=2, decode_starting=1)
    s.engines("prefill", at, *[queued(4000)] * 2)
    s.engines("decode", at, *[held(5000)] * 2)
    said = s.tick()
    assert {opinion(said, role).load_reason for role in s.roles} == {"scaling_in_progress"}
    assert opinion(said, "prefill").target is None


def test_our_own_words_are_the_same_with_it_and_without() -> None:
    plain, beside = Stage.load(load_predictor="constant").teach(), shadowed().teach()
    for a, b in zip(watch(plain, 6, 4000, 40000), watch(beside, 6, 4000, 40000), strict=True):
        assert a.records[:-1] == b.records[:-1]
        assert [r.target for r in a.report.roles.values()] == [r.target for r in b.report.roles.values()]


def both_loops(**config: Any) -> Stage:
    return Stage.of(
        shadow_reference=True,
        **{"load_predictor": "constant", **config},
        enable_load_scaling=True,
        throughput_adjustment_interval_seconds=30,
        ttft_ms=500,
        itl_ms=50,
    )


def test_its_forecast_is_of_the_interval_that_has_just_ended() -> None:
    s = both_loops()
    said = watch(s, 4, queue=0, kv=5000)
    s.traffic(0.0, 30.0, 3000)
    said = watch(s, 0, queue=0, kv=5000)
    assert s.planner.next_tick_at == 35.0
    told = opinion(said[-1], "prefill")
    assert told.throughput_reason == "set_lower_bound"
    assert told.estimated["predicted_requests"] == pytest.approx(3000)
    assert told.floor == 3  # 100 requests/s of 1000 tokens, 40 an engine


def test_an_interval_without_traffic_is_told_as_one() -> None:
    s = both_loops()
    watch(s, 4, queue=0, kv=5000)
    said = watch(s, 0, queue=0, kv=5000)
    assert opinion(said[-1], "prefill").throughput_reason == "no_traffic_data"


@pytest.mark.parametrize("predictor", ["constant", "kalman", "prophet"])
def test_after_a_restart_it_goes_on_as_it_would_have(predictor: str) -> None:
    pytest.importorskip(predictor if predictor == "prophet" else "numpy", reason="the extra prophet is not installed")
    s = both_loops(load_predictor=predictor)
    for end in (30.0, 60.0, 90.0):
        watch(s, 4, queue=0, kv=5000)
        s.traffic(end - 30.0, end, round(10 * end))
        watch(s, 0, queue=0, kv=5000)
    s.traffic(90.0, 100.0, 1000)
    restored = Stage(Planner.restore(s.planner.snapshot()), dict(s.counters))
    for each in (s, restored):
        each.traffic(100.0, 120.0, 2000)
    assert [x.records for x in watch(s, 12, 4000, 9000)] == [x.records for x in watch(restored, 12, 4000, 9000)]


def test_another_configuration_begins_it_anew() -> None:
    s = shadowed()
    watch(s, 6, queue=0, kv=5000)
    config = planner_config({**msgspec.to_builtins(s.planner.config), "ttft_ms": 101.0})
    restored = Stage(Planner.restore(s.planner.snapshot(), config), s.counters)
    said = watch(restored, 0, queue=4000, kv=5000)
    assert opinion(said[-1], "prefill").load_reason == "insufficient_data"


def test_a_snapshot_without_it_can_be_restored_with_it() -> None:
    s = Stage.load(load_predictor="constant")
    watch(s, 2, queue=0, kv=5000)
    config = planner_config({**msgspec.to_builtins(s.planner.config), "shadow_reference": True})
    restored = Stage(Planner.restore(s.planner.snapshot(), config), s.counters)
    assert opinion(watch(restored, 0, queue=0, kv=5000)[-1], "prefill").floor == 1


def test_a_clock_that_was_set_back_does_not_silence_it() -> None:
    s = Stage.load(shadow_reference=True, load_predictor="constant")
    s.tick(100_000.0)
    s.tick(50_000.0)  # nothing is due; ticks go on from here
    said = s.tick(50_005.0)
    assert said.role("prefill").reference is not None


def test_engines_that_were_measured_beforehand_are_known_to_it_at_once() -> None:
    s = shadowed()
    prefill = PrefillProfile(
        isl=(100.0, 500.0, 1000.0, 1500.0, 2000.0),
        ttft_s=tuple(prefill_s(n) for n in PREFILL_SIZES),
        throughput_per_gpu=(1.0,) * 5,
    )
    profile = RoleProfile(source="profile_results_dir", profile=EngineProfile(prefill=prefill))
    s.give(EngineProfiles(dgd=DGD, at=0.0, roles={"prefill": profile}), 0.0)
    said = watch(s, 0, queue=4000, kv=5000)
    assert opinion(said[-1], "prefill").target == 3
    assert opinion(said[-1], "prefill").estimated["ttft_ms"] == pytest.approx(124.58)  # 5100 tokens in 5 and 2 idle
    assert "itl_ms" not in opinion(said[-1], "decode").estimated


def test_aggregated_workers_are_judged_as_one_role() -> None:
    s = Stage.load(mode="agg", shadow_reference=True, load_predictor="constant", itl_ms=20)
    for p, d in (*MIXED_LOADS, MIXED_LOADS[0]):
        at = s.planner.next_tick_at
        s.fleet(at, agg=1)
        s.engines("agg", at, {"prefill": p, "decode": d, "wall": mixed_s(p[1], d[1])})
        said = s.tick()
    assert opinion(said, "agg").target == 2
    assert opinion(said, "agg").load_reason == "scale_up"


def test_it_may_decide_in_our_place() -> None:
    s = Stage.load(capacity_policy="reference_exact", load_predictor="constant", ttft_ms=12)
    said = watch(s, 6, queue=0, kv=5000)
    first = next(x for x in said if x.decision is not None)
    assert first.role("prefill").load_reason == "scale_up"  # idle engines whose lone prompt misses the SLA
    assert first.role("prefill").target == opinion(first, "prefill").target == 3


def test_in_our_place_its_floors_are_its_own() -> None:
    s = both_loops(capacity_policy="reference_exact", load_min_observations=4)
    watch(s, 4, queue=0, kv=5000, fleet=1)
    s.traffic(0.0, 30.0, 12_000)
    said = watch(s, 0, queue=0, kv=5000, fleet=1)
    assert said[-1].role("prefill").target == 10  # 400 requests/s, 40 an engine
    assert said[-1].role("decode").throughput_reason == "set_lower_bound"
    assert said[-1].role("decode").target == opinion(said[-1], "decode").floor


def test_what_it_decides_in_our_place_is_within_our_bounds() -> None:
    s = both_loops(capacity_policy="reference_exact", load_min_observations=4, max_gpu_budget=8)
    s.give(proposal("AT_MOST", decode=3), 0.0)
    watch(s, 4, queue=0, kv=5000, fleet=1)
    s.traffic(0.0, 30.0, 12_000)
    said = watch(s, 0, queue=0, kv=5000, fleet=1)
    assert said[-1].targets is not None
    assert said[-1].targets["decode"] <= 3
    assert sum(said[-1].targets.values()) <= 8


def test_a_forecaster_that_it_lacks_is_its_lightest_one() -> None:
    s = Stage.of(shadow_reference=True, load_predictor="seasonal")
    assert s.planner.config.load_predictor == "seasonal"
    assert s.tick().role("prefill").reference is not None


def test_a_predictor_whose_extra_is_missing_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.models.forecast.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="arima"):
        Stage.of(shadow_reference=True, load_predictor="arima")
