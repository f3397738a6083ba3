"""Our copy of the reference planner as a whole, over twenty to sixty ticks."""

from collections.abc import Mapping
from typing import Any

from conformance import Case, close, copies
from reference import (
    FIELDS,
    by_slot,
    engines_of,
    floors,
    fpms_of,
    opinion_of,
    rates,
    said,
    seen_of,
    settings_of,
    traffic_of,
)

from headrace.models.reference.planner import ReferencePlanner, Told
from headrace.models.reference.plugins import Plugin, Stage
from headrace.models.reference.schedule import Schedule

REL, ABS = 1e-4, 1e-6  # as the file says


@copies("09_scenarios")
def scenario(case: Case) -> None:
    i = case.input
    planner = _planner(i)
    schedule = planner.start(i["start_s"])
    for tick, want in zip(i["ticks"], case.expected["ticks"], strict=True):
        told = planner.tick(tick["now_s"], seen_of(planner.settings, tick))
        got = {"scheduled": _scheduled(schedule), **_told(planner, told)}
        assert set(want) == set(got)
        for name, value in want.items():
            assert _same(got[name], value), (tick["now_s"], name, got[name], value)
        schedule = told.schedule


def _planner(i: Mapping[str, Any]) -> ReferencePlanner:
    settings = settings_of(i["config"])
    planner = ReferencePlanner(settings, base_s=i["scale_interval_s"])
    planner.set_engines(engines_of(settings, i["capabilities"]))
    planner.bootstrap({role: fpms_of(i["bootstrap_fpms"].get(role) or []) for role in settings.roles})
    planner.warm_up(window for row in i["warm_traffic"] or [] if (window := traffic_of(row)) is not None)
    extra = i["extra_plugin"]
    if extra is not None:
        opinion = opinion_of(extra, {"kind": "override", **extra})
        planner.registry.register(Plugin(extra["id"], Stage(extra["stage"]), extra["priority"], lambda _: opinion))
    return planner


def _scheduled(schedule: Schedule) -> dict[str, Any]:
    return {
        "at_s": schedule.at,
        "run_load_scaling": schedule.load,
        "run_throughput_scaling": schedule.throughput,
        "need_traffic_metrics": schedule.traffic,
        "use_full_traffic_metrics": schedule.full_traffic,
        "traffic_metrics_duration_s": schedule.window_s,
        "need_worker_states": True,
        "need_worker_fpm": schedule.fpm,
    }


def _told(planner: ReferencePlanner, told: Told) -> dict[str, Any]:
    targets = told.targets
    reasons = {
        name.replace("reason", f"{loop}_reason"): reason
        for loop, decision in (("load", told.load), ("throughput", told.throughput))
        for name, reason in said(decision).items()
        if name != "decision"
    }
    predicted = {
        f"predicted_{name}": getattr(told.prediction, name, None) for name in FIELDS if name != "accept_length"
    }
    return {
        "scale_to": None if targets is None else {"prefill": None, "decode": None} | by_slot(targets),
        "execute_action": told.action,
        "estimated_ttft_ms": told.load.ttft_ms,
        "estimated_itl_ms": told.load.itl_ms,
        **{f"engine_rps_{s}": rate for s, rate in rates(planner.state, told.throughput).items()},
        **floors(planner.state),
        **reasons,
        **predicted,
    }


def _same(got: Any, want: Any) -> bool:
    if isinstance(want, dict):
        return set(got) == set(want) and all(_same(got[key], value) for key, value in want.items())
    if isinstance(want, float) or isinstance(got, float):
        return close(got, want, rel=REL, absolute=ABS)
    return bool(got == want)
