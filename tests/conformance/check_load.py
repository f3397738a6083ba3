"""Decisions of the load loop, with their reasons and estimates."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from conformance import Case, checks, close

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits, EngineLoad
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import PREFILL, Role
from headrace.schemas.config import FIELDS, PlannerConfig, planner_config
from headrace.schemas.errors import ConfigError
from headrace.schemas.inventory import RoleInventory
from headrace.streams.agents.load import LoadLoop
from headrace.streams.agents.propose import own_proposal, own_verdicts
from headrace.streams.agents.reconcile import Opinions, RolePlan, reconcile
from headrace.streams.agents.view import RoleView

PER_ROLE = "Each role has its own reason"
SAYS_WHY = "A count that a rule moved says which rule"
ONE_ROLE = "One role does not stop the other"
DEAD_BAND = "A threshold keeps a dead band"
FLOORS_HOLD = "Floors hold in every mode"
HALF_SEEN = "A scale-up needs half the engines, a scale-down all"
DEFAULTS = "An engine that has not said its limits has the usual ones"
REFUSED_CONFIG = "A setting that cannot be right is refused"
RANKS = "A hot rank beside an idle one asks for nothing"
UNDILUTED = "Means are not diluted"


@dataclass(frozen=True, slots=True)
class Told:
    """One tick of ours."""

    views: Mapping[Role, RoleView]
    loop: Mapping[Role, Verdict]
    plans: Mapping[Role, RolePlan]


@checks("05_load_scaling")
def load_scaling(case: Case) -> set[str]:
    settings = case.input["config"]
    raw = {key: value for key, value in settings.items() if key in FIELDS}
    try:
        config = planner_config({**raw, "capacity_policy": "reference"})
    except ConfigError:
        assert settings["load_scaling_down_sensitivity"] > 100
        return {REFUSED_CONFIG}
    kinds = set()
    for told, tick, want in zip(_run(case, config), case.input["ticks"], case.expected["ticks"], strict=True):
        kinds |= _compare(case, config, told, tick, want)
    if case.quirk and not kinds:
        assert "DP rank" in case.why
        return {RANKS}
    return kinds


def _run(case: Case, config: PlannerConfig) -> list[Told]:
    """The ticks through our load loop, floors, merge and budget."""
    models = {role: EngineModel(min_observations=config.load_min_observations) for role in config.roles}
    for role, model in models.items():
        _learn(model, case.input["bootstrap_fpms"].get(role, []))
    loop, told = LoadLoop(config), []
    traffic = SimpleNamespace(kv_hit_rate=None, accept_length=None)
    floors: dict[str, int] = {}
    for tick in case.input["ticks"]:
        for name in ("kv_hit_rate", "accept_length"):
            value = tick.get(name)
            if value is not None and value == value:  # what is unknown leaves the last value
                setattr(traffic, name, value)
        floors |= tick.get("floor") or {}
        views = {role: _view(case, config, role, tick) for role in config.roles}
        if tick["observe"]:
            for role, model in models.items():
                _learn(model, tick["fpm"].get(_slot(role)) or [])
        told.append(_tick(config, views, loop.run(views, models, traffic, _moving(tick)), floors))  # type: ignore[arg-type]
    return told


def _tick(
    config: PlannerConfig, views: Mapping[Role, RoleView], verdicts: Mapping[Role, Verdict], floors: Mapping[str, int]
) -> Told:
    of = {role: floors.get(_slot(role)) if config.throughput_loop else None for role in config.roles}
    own = own_verdicts(config, views, verdicts, {}, of)
    proposal = own_proposal(config, "ns/name", 0.0, own)
    plans, _ = reconcile(config, views, Opinions([] if proposal is None else [proposal], own))
    return Told(views, verdicts, plans)


def _slot(role: Role) -> str:
    """The reference plans aggregated workers in the place of decode."""
    return "prefill" if role == PREFILL else "decode"


def _moving(tick: Mapping[str, Any]) -> bool:
    """The reference's connector says so, or there are more workers than expected."""
    counts = tick["worker_counts"]
    flags = any(counts.get(f"{slot}_scaling_in_progress") for slot in ("prefill", "decode"))
    return flags or any(
        (counts.get(f"expected_num_{slot}") or 0) < (counts.get(f"ready_num_{slot}") or 0)
        for slot in ("prefill", "decode")
        if counts.get(f"expected_num_{slot}") is not None
    )


def _view(case: Case, config: PlannerConfig, role: Role, tick: Mapping[str, Any]) -> RoleView:
    slot = _slot(role)
    counts, said = tick["worker_counts"], case.input["capabilities"].get(slot) or {}
    ready, expected = counts.get(f"ready_num_{slot}"), counts.get(f"expected_num_{slot}")
    fpms = tick["fpm"].get(slot) or []
    ranks = Counter(fpm["worker_id"] for fpm in fpms)
    default = EngineLimits()
    return RoleView(
        role=role,
        inventory=None if ready is None else RoleInventory(ready=ready, starting=max(0, (expected or 0) - ready)),
        engines={(fpm["worker_id"], fpm.get("dp_rank", 0)): _load(fpm) for fpm in fpms},
        width=max(ranks.values(), default=1),
        limits=EngineLimits(
            said.get("max_num_batched_tokens") or default.max_num_batched_tokens,
            said.get("max_num_seqs") or default.max_num_seqs,
            said.get("max_kv_tokens") or default.max_kv_tokens,
        ),
        context_length=said.get("context_length"),
        kv_capacity=said.get("max_kv_tokens"),
        nextn=said.get("speculative_nextn") or config.speculative_nextn,
        gpus=said.get("num_gpu"),
    )


def _load(fpm: Mapping[str, Any]) -> EngineLoad:
    return EngineLoad(
        queued_prefill_requests=fpm.get("qp", 0),
        queued_prefill_tokens=fpm.get("qpt", 0),
        scheduled_prefill_requests=fpm.get("sp", 0),
        scheduled_prefill_tokens=fpm.get("spt", 0),
        scheduled_decode_requests=fpm.get("sd", 0),
        scheduled_decode_kv_tokens=fpm.get("sdk", 0),
        queued_decode_requests=fpm.get("qd", 0),
        queued_decode_kv_tokens=fpm.get("qdk", 0),
    )


def _learn(model: EngineModel, fpms: list[Mapping[str, Any]]) -> None:
    for fpm in fpms:
        model.learn(*([fpm.get(key, 0)] for key in ("sp", "spt", "sd", "sdk", "wall_time")))


def _compare(
    case: Case, config: PlannerConfig, told: Told, tick: Mapping[str, Any], want: Mapping[str, Any]
) -> set[str]:
    kinds = _estimates(case, told, want)
    for role in config.roles:
        target, reason = _wanted(config, told, want, role)
        plan = told.plans[role]
        if plan.target != target:
            kinds.add(_why_target(case, told, tick, role, target))
        elif str(plan.reason) != reason:
            kinds.add(_why_reason(config, told, role, reason))
    return kinds


def _wanted(config: PlannerConfig, told: Told, want: Mapping[str, Any], role: Role) -> tuple[int | None, str | None]:
    """The reference's count and reason. Where it decides nothing, what is there and coming stays."""
    decision = (want["decision"] or {}).get(_slot(role))
    several = len(config.roles) > 1
    return (
        told.views[role].current if decision is None else decision,
        want[f"reason_{_slot(role)}"] if several else want["reason"],
    )


def _estimates(case: Case, told: Told, want: Mapping[str, Any]) -> set[str]:
    """The reference shows the largest estimate, where its gates let it get that far."""
    kinds = set()
    for name, shown in (("ttft_ms", want["estimated_ttft_ms"]), ("itl_ms", want["estimated_itl_ms"])):
        ours = [v.evidence[name] for v in told.loop.values() if name in v.evidence]
        if shown is not None and ours and not close(max(ours), shown, rel=1e-5):
            _dilutes(case)
            kinds.add(UNDILUTED)
    return kinds


def _dilutes(case: Case) -> None:
    """Iterations without prefill among those learned from, which count as prompts of 0 tokens there."""
    rows = [fpm for fpms in case.input["bootstrap_fpms"].values() for fpm in fpms]
    assert any(not fpm.get("sp") for fpm in rows)
    assert any(fpm.get("sp") for fpm in rows)


def _why_target(case: Case, told: Told, tick: Mapping[str, Any], role: Role, theirs: int | None) -> str:
    settings, plan, view, verdict = case.input["config"], told.plans[role], told.views[role], told.loop[role]
    reason = str(plan.reason)
    assert plan.target is not None
    assert theirs is not None
    if reason == "scale_down_refused_consolidation" and settings["optimization_target"] != "sla":
        # One worker fewer would put the survivors at, or within a fifth of, what scales up again.
        crowded = verdict.evidence["signal_max"] * view.ready / (view.ready - 1)
        assert crowded >= verdict.evidence["up_at"] * settings["load_scaling_down_sensitivity"] / 100
        assert theirs < view.ready
        return DEAD_BAND
    if reason == "scale_up" and case.quirk:
        assert plan.target == tick["floor"][_slot(role)]
        return FLOORS_HOLD
    if reason == "scale_up" and view.workers_seen < view.ready:
        assert 2 * view.workers_seen >= view.ready
        return HALF_SEEN
    if any(name != role and not _complete(other) for name, other in told.views.items()):
        return ONE_ROLE
    assert case.input["capabilities"][_slot(role)].get("max_num_batched_tokens") is None, (role, reason, theirs)
    return DEFAULTS


def _complete(view: RoleView) -> bool:
    """All its workers are there, and speak."""
    return view.workers_seen == view.ready and view.inventory is not None and not view.inventory.starting


def _why_reason(config: PlannerConfig, told: Told, role: Role, theirs: str | None) -> str:
    plan = told.plans[role]
    ours = str(plan.reason)
    if ours in {"gpu_budget_ceiling", "gpu_budget_floor", "min_endpoint"}:
        assert plan.clamps
        assert ours == str(plan.clamps[-1].rule)
        return SAYS_WHY
    if ours == "not_due":
        assert not config.load_loop
        return PER_ROLE
    assert len(config.roles) > 1
    assert theirs in {"no_change", None}
    assert ours in {"scale_down_refused_consolidation", "no_fpm_data"}
    return PER_ROLE
