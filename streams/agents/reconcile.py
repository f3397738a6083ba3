"""Reconcile: from opinions to one target per role, with a reason for each and every clamp on record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.models.scaling.budget import Budget, Fleet, fit_budget
from headrace.models.scaling.merge import merge, rejection
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.proposal import Proposal
from headrace.schemas.reasons import Reason
from headrace.schemas.tick_report import Clamp
from headrace.streams.agents.forecast import OWN
from headrace.streams.agents.view import RoleView

# A reason that says what is missing outlives the lift to min_endpoint, which needs no data (dynamo#14575).
HOLDS = frozenset(
    {
        Reason.MODEL_NOT_READY,
        Reason.PARTNER_NOT_READY,
        Reason.NO_TRAFFIC_DATA,
        Reason.NO_FPM_DATA,
        Reason.INSUFFICIENT_DATA,
        Reason.WORKER_COUNT_MISMATCH,
    }
)


@dataclass(slots=True)
class RolePlan:
    """What becomes of a role in this tick. `target` None = hold, for want of an inventory or by a REJECT."""

    current: int | None
    reason: Reason
    merged: int | None = None
    target: int | None = None
    clamps: list[Clamp] = field(default_factory=list)
    used: list[Proposal] = field(default_factory=list)  # that made the merged count what it is

    def clamp(self, rule: Reason, after: int) -> None:
        assert self.target is not None
        self.clamps.append(Clamp(rule=rule, before=self.target, after=after))
        self.target = after


@dataclass(frozen=True, slots=True)
class Opinions:
    """Everything that is weighed. `verdicts` are the loops' last words, which give the reasons of a hold."""

    proposals: Sequence[Proposal]
    verdicts: Mapping[Role, Verdict]


def reconcile(
    config: PlannerConfig, views: Mapping[Role, RoleView], opinions: Opinions
) -> tuple[dict[Role, RolePlan], list[str]]:
    """A plan for every role, and notes for the operator.

    A role whose count is unknown holds, and holds the others: a budget over an unknown sum is no budget.
    """
    plans = {role: RolePlan(view.current, opinions.verdicts[role].reason) for role, view in views.items()}
    reject = rejection(opinions.proposals)
    if reject is not None:
        for plan in plans.values():
            plan.reason, plan.used = Reason.REJECTED_BY_USER, [reject]
        return plans, [f"{reject.source} rejects scaling: {reject.reason or 'no reason given'}"]
    if any(plan.current is None for plan in plans.values()):
        for plan in plans.values():
            plan.reason = Reason.NO_INVENTORY
        return plans, []
    for role, plan in plans.items():
        _merge(config, role, plan, views[role], opinions)
        least = config.min_endpoint_of(role)
        if plan.target is not None and plan.target < least:
            if plan.reason not in HOLDS:
                plan.reason = Reason.MIN_ENDPOINT
            plan.clamp(Reason.MIN_ENDPOINT, least)
    return plans, _fit(config, views, plans)


def _merge(config: PlannerConfig, role: Role, plan: RolePlan, view: RoleView, opinions: Opinions) -> None:
    """Where nobody asks for a count, it is the one that was carried out last: a drift from it is put right."""
    baseline = plan.current
    assert baseline is not None
    if config.on_drift == "reissue" and view.in_force is not None and view.in_force != baseline:
        baseline, plan.reason = view.in_force, Reason.DRIFT
    merged = merge(role, baseline, opinions.proposals)
    plan.merged = plan.target = merged.replicas
    plan.used = list(merged.used)
    if merged.winner is not None:
        own = merged.winner.source.startswith(OWN)
        plan.reason = opinions.verdicts[role].reason if own else Reason.OVERRIDE_BY_USER
    for bound in merged.bounds:
        plan.reason = bound.rule
        plan.clamps.append(Clamp(rule=bound.rule, before=bound.before, after=bound.after))


def _fit(config: PlannerConfig, views: Mapping[Role, RoleView], plans: Mapping[Role, RolePlan]) -> list[str]:
    fleet = Fleet(
        ask={role: plan.target or 0 for role, plan in plans.items()},
        current={role: plan.current or 0 for role, plan in plans.items()},
        minimum={role: config.min_endpoint_of(role) for role in plans},
        gpus={role: view.gpus for role, view in views.items()},
    )
    fitted = fit_budget(fleet, Budget(config.min_gpu_budget, config.max_gpu_budget))
    for role, rule in fitted.rules.items():
        plans[role].reason = rule
        plans[role].clamp(rule, fitted.targets[role])
    notes = []
    if fitted.floor_unmet:
        notes.append(
            f"min_gpu_budget is missed by {fitted.floor_unmet} GPUs: no whole replica fits below max_gpu_budget"
        )
    if fitted.over_gpus:
        notes.append(f"the least fleet is {fitted.over_gpus} GPUs above max_gpu_budget: nothing may grow")
    if Reason.GPU_SHAPE_UNKNOWN in fitted.rules.values():
        notes.append("the GPUs of a replica are unknown, so a budget cannot be kept: set prefill/decode_engine_num_gpu")
    return notes
