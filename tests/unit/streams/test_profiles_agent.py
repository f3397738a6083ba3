"""A planner that is told of its engines before they serve."""

import pytest
from world import DGD, batch, decode_s, fpm, inventory, prediction, prefill_s, window

from headrace.models.perf.engine import Kind
from headrace.schemas.codec import encode
from headrace.schemas.config import planner_config
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.engine_profiles import EngineProfiles, RoleProfile, Source
from headrace.schemas.profile import DecodeProfile, EngineProfile, PrefillProfile
from headrace.schemas.reasons import Reason
from headrace.schemas.tick_report import TickReport
from headrace.streams.planner import Planner

CONFIG = {
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "throughput_adjustment_interval_seconds": 60,
    "max_gpu_budget": -1,
}
SIZES = (100.0, 1000.0, 2000.0, 4000.0)
PREFILLS = PrefillProfile(isl=SIZES, ttft_s=tuple(prefill_s(n) for n in SIZES), throughput_per_gpu=SIZES)
DECODES = DecodeProfile(
    kv_usage=(0.01, 0.5, 0.04, 0.4),
    context_length=(1000.0, 1000.0, 4000.0, 4000.0),
    itl_s=tuple(decode_s(*load) for load in ((1, 1000), (50, 50_000), (1, 4000), (10, 40_000))),
    throughput_per_gpu=(1.0, 3.0, 1.0, 2.0),
    max_kv_tokens=100_000.0,
)


def profiles(at: float = 0.0, source: str = Source.FILES, **more: EngineProfile) -> EngineProfiles:
    """What a sweep says of both roles; `more` replaces or adds a role."""
    known = {"prefill": EngineProfile(prefill=PREFILLS), "decode": EngineProfile(decode=DECODES)} | more
    roles = {role: RoleProfile(source=source, profile=p, not_used={"aic": "no"}) for role, p in known.items()}
    return EngineProfiles(dgd=DGD, at=at, roles=roles)


def planner(**config: object) -> Planner:
    return Planner(planner_config(CONFIG | config), DGD)


def report(p: Planner, now: float) -> TickReport:
    found = p.tick(now)[-1]
    assert isinstance(found, TickReport)
    return found


def test_the_throughput_loop_sizes_a_fleet_that_has_not_served_yet():
    p, cold = planner(capacity_policy="reference"), planner(capacity_policy="reference")
    p.handle(profiles(), 0.0)
    for each in (p, cold):
        each.handle(inventory(60.0, prefill=1, decode=1), 60.0)
        each.handle(window(0.0, 60.0, 6000), 60.0)
        each.handle(prediction(100.0, 60.0), 60.0)
    found, without = report(p, 60.0), report(cold, 60.0)
    assert found.roles["prefill"].estimated["capacity_rps"] == pytest.approx(40.0, rel=0.01)  # model A: 2 in 50 ms
    assert found.roles["prefill"].target == 3
    assert without.roles["prefill"].throughput_reason == Reason.MODEL_NOT_READY


def test_the_report_says_where_speed_is_known_from():
    p = planner()
    assert report(p, 5.0).roles["prefill"].speed_source == ""
    p.handle(profiles(), 6.0)
    first = report(p, 10.0)
    assert {role: r.speed_source for role, r in first.roles.items()} == dict.fromkeys(
        ("prefill", "decode"), "profile_results_dir"
    )
    assert first.roles["prefill"].estimated["live_share"] == 0.0
    assert "prefill speed from profile_results_dir (aic: no)" in first.notes
    assert report(p, 15.0).notes == []


def test_the_report_says_when_live_iterations_have_taken_over():
    p = planner()
    p.handle(profiles(), 0.0)
    p.handle(batch("prefill", 1.0, *(fpm("1", i, wall=prefill_s(500), prefill=(1, 500)) for i in range(1, 40))), 1.0)
    roles = report(p, 5.0).roles
    assert roles["prefill"].speed_source == Source.LIVE
    assert roles["prefill"].estimated["live_share"] > 0.9
    assert roles["decode"].speed_source == Source.FILES


def test_without_any_profile_speed_comes_from_live_iterations():
    p = planner()
    p.handle(batch("prefill", 1.0, *(fpm("1", i, wall=prefill_s(500), prefill=(1, 500)) for i in range(1, 40))), 1.0)
    assert {role: r.speed_source for role, r in report(p, 5.0).roles.items()} == {
        "prefill": Source.LIVE,
        "decode": "",
    }


def test_a_repeated_or_older_profile_changes_nothing():
    p = planner()
    p.handle(profiles(at=10.0), 10.0)
    before = p.snapshot()
    p.handle(profiles(at=10.0), 11.0)
    p.handle(profiles(at=9.0, source="other"), 11.0)
    assert p.snapshot() == before


def test_a_newer_profile_replaces_the_older_and_says_so_once():
    p = planner()
    p.handle(profiles(at=10.0), 10.0)
    p.handle(profiles(at=11.0), 11.0)  # the same, said again
    assert len(p.notes) == 2
    slower = PrefillProfile(isl=SIZES, ttft_s=tuple(2 * prefill_s(n) for n in SIZES), throughput_per_gpu=SIZES)
    p.handle(profiles(at=12.0, prefill=EngineProfile(prefill=slower)), 12.0)
    assert len(p.notes) == 3
    assert p.models["prefill"].wall_time_s(prefill_tokens=1000) == pytest.approx(2 * prefill_s(1000), rel=0.01)


def test_a_clock_ahead_does_not_shut_out_later_profiles():
    p = planner()
    p.handle(profiles(at=1e9), 10.0)
    p.handle(profiles(at=20.0, source="later"), 20.0)
    assert report(p, 20.0).roles["prefill"].speed_source == "later"


def test_a_role_that_is_not_planned_is_named():
    p = planner()
    p.handle(profiles(agg=EngineProfile(prefill=PREFILLS, decode=DECODES)), 0.0)
    assert any("agg" in note and "not used" in note for note in p.notes)


def test_a_restored_planner_knows_what_it_was_told():
    p = planner()
    p.handle(profiles(at=10.0), 10.0)
    again = Planner.restore(p.snapshot())
    assert again.snapshot() == p.snapshot()
    again.handle(profiles(at=10.0), 11.0)
    assert again.snapshot() == p.snapshot()
    assert encode(report(again, 15.0)) == encode(report(p, 15.0))


def test_a_model_that_begins_anew_is_told_again():
    p = planner()
    p.handle(profiles(), 0.0)
    config = CONFIG | {"fpm_sample_bucket_size": 32}
    p.handle(ConfigRevision(dgd=DGD, revision=1, at=1.0, config=config), 1.0)
    assert p.models["prefill"].ready(Kind.PREFILL)


def test_the_queue_aware_policy_sizes_a_fleet_that_has_not_served_yet():
    p, cold = planner(capacity_policy="queue_aware"), planner(capacity_policy="queue_aware")
    p.handle(profiles(), 0.0)
    for each in (p, cold):
        each.handle(inventory(60.0, prefill=1, decode=1), 60.0)
        for end in range(5, 61, 5):
            each.handle(window(end - 5.0, float(end), 500), float(end))
    found, without = report(p, 60.0).roles["prefill"], report(cold, 60.0).roles["prefill"]
    assert found.target >= 3  # 100 requests of 1000 tokens a second: 30 ms each
    assert without.load_reason == Reason.MODEL_NOT_READY


def test_an_aggregated_engine_is_known_from_both_halves():
    p = planner(mode="agg", capacity_policy="reference")
    record = EngineProfiles(
        dgd=DGD,
        at=0.0,
        roles={"agg": RoleProfile(source="sweep", profile=EngineProfile(prefill=PREFILLS, decode=DECODES))},
    )
    p.handle(record, 0.0)
    p.handle(inventory(60.0, agg=1), 60.0)
    p.handle(window(0.0, 60.0, 600), 60.0)
    p.handle(prediction(10.0, 60.0), 60.0)
    found = report(p, 60.0).roles["agg"]
    assert found.estimated["capacity_rps"] > 5
    assert found.speed_source == "sweep"


def test_the_correction_policy_has_its_tables_from_the_same_record():
    p = planner(capacity_policy="correction", enable_load_scaling=False, prefill_engine_num_gpu=1)
    assert p._memory.correction.tables is None
    p.handle(profiles(), 0.0)
    assert p._memory.correction.tables is not None
    p.handle(inventory(60.0, prefill=1, decode=1), 60.0)
    p.handle(window(0.0, 60.0, 60), 60.0)
    p.handle(prediction(1.0, 60.0), 60.0)
    assert report(p, 60.0).roles["prefill"].throughput_reason != Reason.MODEL_NOT_READY
