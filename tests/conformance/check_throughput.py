"""Decisions and floors of the throughput loop: engines for a forecast load."""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from conformance import Case, checks, close

from headrace.models.perf.capacity import Capacity, LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits
from headrace.models.scaling.budget import Budget, Fleet, fit_budget
from headrace.models.scaling.throughput import throughput_verdicts
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import PREFILL, Role
from headrace.schemas.config import FIELDS, PlannerConfig, planner_config
from headrace.streams.agents.throughput import accept_length

LEAST_VIOLATION = "Where nothing meets the SLA, the least violation"
NO_NUMBER = "What is no number is unknown"
SHARED = "GPUs are shared out one replica at a time"

BUDGET_MOVED = frozenset({"gpu_budget_ceiling", "gpu_budget_floor"})

Row = Mapping[str, Any]


@checks("06_throughput_scaling")
def throughput_scaling(case: Case) -> set[str]:
    raw = {key: value for key, value in case.input["config"].items() if key in FIELDS}
    config = planner_config({**raw, "capacity_policy": "reference"})
    models = {role: _model(case, config, role) for role in config.roles}
    held: dict[str, float | None] = {"kv_hit_rate": None, "accept_length": None}
    kinds = set()
    for tick, want in zip(case.input["ticks"], case.expected["ticks"], strict=True):
        for name in held:
            value = tick.get(name)
            held[name] = held[name] if value is None or math.isnan(value) else value
        found = {role: _capacity(case, config, model, role, tick, held) for role, model in models.items()}
        kinds |= _compare(case, config, found, tick, want)
    return kinds


def _model(case: Case, config: PlannerConfig, role: Role) -> EngineModel:
    model = EngineModel(min_observations=config.load_min_observations)
    for fpm in case.input["bootstrap_fpms"].get(role, []):
        model.learn(*([fpm.get(key, 0)] for key in ("sp", "spt", "sd", "sdk", "wall_time")))
    model.settle()
    return model


def _slot(role: Role) -> str:
    return "prefill" if role == PREFILL else "decode"


def _capacity(
    case: Case, config: PlannerConfig, model: EngineModel, role: Role, tick: Row, held: Mapping[str, float | None]
) -> Capacity | None:
    said, default = case.input["capabilities"].get(_slot(role)) or {}, EngineLimits()
    nextn = said.get("speculative_nextn") or config.speculative_nextn
    if tick["isl"] is None or tick["osl"] is None:
        return None
    return capacity(
        model,
        role,
        EngineLimits(
            said.get("max_num_batched_tokens") or default.max_num_batched_tokens,
            said.get("max_num_seqs") or default.max_num_seqs,
            said.get("max_kv_tokens") or default.max_kv_tokens,
        ),
        RequestShape(
            tick["isl"],
            tick["osl"],
            held["kv_hit_rate"],
            accept_length(held["accept_length"], SimpleNamespace(nextn=nextn)),  # type: ignore[arg-type]
        ),
        LatencyTargets(config.ttft_ms / 1000, config.itl_ms / 1000),
    )


def _compare(
    case: Case, config: PlannerConfig, found: Mapping[Role, Capacity | None], tick: Row, want: Row
) -> set[str]:
    if "error" in want:  # the reference raises; ours has no estimate, and holds
        assert set(found.values()) == {None}
        return {NO_NUMBER}
    if not config.throughput_loop or tick["duration_s"] <= 0 or tick["num_req"] is None:
        assert want["decision"] is None
        return set()
    kinds = _rates(case, found, want)
    minimum = {role: config.min_endpoint_of(role) for role in config.roles}
    verdicts = throughput_verdicts(tick["num_req"] / tick["duration_s"], found, minimum)
    targets = {role: v.replicas for role, v in verdicts.items() if v.replicas is not None}
    if want["decision"] is None and not config.load_loop:
        _holds(verdicts, want, config)
        assert targets == {}
        return kinds
    theirs = _theirs(config, want)
    if not config.load_loop:
        targets = _within_budget(case, config, targets)
    if LEAST_VIOLATION in kinds:
        assert all(targets[role] >= theirs[role] for role in targets), (targets, theirs)
    elif targets != theirs:
        _shared_alike(case, targets, theirs)
        kinds.add(SHARED)
    return kinds


def _shared_alike(case: Case, ours: Mapping[Role, int], theirs: Mapping[Role, int]) -> None:
    """A ceiling is shared in another way, of which as much is used."""
    gpus = {role: case.input["capabilities"][_slot(role)]["num_gpu"] for role in ours}
    ceiling = case.input["config"]["max_gpu_budget"]
    totals = [sum(n * gpus[role] for role, n in counts.items()) for counts in (ours, theirs)]
    assert totals[1] <= totals[0] <= ceiling, (ours, theirs)


def _rates(case: Case, found: Mapping[Role, Capacity | None], want: Row) -> set[str]:
    """Requests per second of one engine; less than the reference's where nothing meets the SLA."""
    kinds = set()
    for role, ours in found.items():
        theirs = want[f"engine_rps_{_slot(role)}"]
        got = None if ours is None else ours.requests_per_s
        if close(got, theirs, rel=1e-5):
            continue
        assert ours is not None, (role, theirs)
        assert not ours.meets_sla, (role, ours, theirs)
        assert theirs is not None
        assert ours.requests_per_s <= theirs
        kinds.add(LEAST_VIOLATION)
    return kinds


def _holds(verdicts: Mapping[Role, Verdict], want: Row, config: PlannerConfig) -> None:
    """Nothing is decided: for the reasons that the reference gives, where it gives any."""
    several = len(config.roles) > 1
    for role, verdict in verdicts.items():
        reason = want[f"reason_{_slot(role)}"] if several else want["reason"]
        assert verdict.replicas is None
        assert reason is None or str(verdict.reason) == reason or reason == "partner_not_ready"


def _theirs(config: PlannerConfig, want: Row) -> dict[Role, int]:
    """What the reference decides, or sets as floors where the load loop decides."""
    if config.load_loop:
        return {role: want[f"floor_{_slot(role)}"] for role in config.roles}
    return {role: want["decision"][_slot(role)] for role in config.roles}


def _within_budget(case: Case, config: PlannerConfig, targets: Mapping[Role, int]) -> dict[Role, int]:
    gpus = {role: (case.input["capabilities"].get(_slot(role)) or {}).get("num_gpu") for role in targets}
    minimum = {role: config.min_endpoint_of(role) for role in targets}
    fleet = Fleet(ask=targets, current=targets, minimum=minimum, gpus=gpus)
    fitted = fit_budget(fleet, Budget(config.min_gpu_budget, config.max_gpu_budget))
    assert {str(rule) for rule in fitted.rules.values()} <= BUDGET_MOVED
    return dict(fitted.targets)
