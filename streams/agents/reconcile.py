"""Reconcile: from opinions to one target per role, with a reason for each and every clamp on record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.models.scaling.budget import Budget, Fitted, fit_budget
from headrace.models.scaling.merge import Merged, merge, rejection
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.reasons import Reason
from headrace.schemas.tick_report import Clamp
from headrace.streams.agents.view import RoleView

OWN = "headrace."
HOLDS = frozenset({Reason.MODEL_NOT_READY, Reason.NO_TRAFFIC_DATA, Reason.NO_FPM_DATA, Reason.PREDICT_FAILED})


@dataclass(slots=True)
class RolePlan:
    """What becomes of a role in this tick. `target` None = hold, for want of an inventory or by a REJECT."""

    current: int | None
    reason: Reason
    merged: int | None = None
    target: int | None = None
    clamps: list[Clamp] = field(default_factory=list)

    def clamp(self, rule: Reason, after: int) -> None:
        assert self.target is not None
        self.clamps.append(Clamp(rule=rule, before=self.target, after=after))
        self.target = after


@dataclass(frozen=True, slots=True)
class Opinions:
    """Everything that the reconciliation weighs. `verdicts` are the loops' last words, which give the reasons of a hold."""

    proposals: Sequence[Proposal]
    verdicts: Mapping[Role, Verdict]
    in_force: Mapping[Role, int] | None  # targets of the last applied decision


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
            plan.reason = Reason.REJECTED_BY_USER
        return plans, [f"{reject.source} rejects scaling: {reject.reason or 'no reason given'}"]
    if any(plan.current is None for plan in plans.values()):
        for plan in plans.values():
            plan.reason = Reason.NO_INVENTORY
        return plans, []
    for role, plan in plans.items():
        _merge(config, role, plan, views[role], opinions)
    for role, plan in plans.items():
        least = config.min_endpoint_of(role)
        if plan.target is not None and plan.target < least:
            if plan.reason not in HOLDS:
                plan.reason = Reason.MIN_ENDPOINT
            plan.clamp(Reason.MIN_ENDPOINT, least)
    return plans, _fit(config, views, plans)


def _merge(config: PlannerConfig, role: Role, plan: RolePlan, view: RoleView, opinions: Opinions) -> None:
    current = plan.current
    assert current is not None
    baseline = current
    if opinions.in_force is not None and role in opinions.in_force:
        intended = opinions.in_force[role]
        if view.settling:
            baseline = plan.current = intended  # the inventory is older than the ack: it cannot show it yet
        elif config.on_drift == "reissue" and intended != current:
            baseline, plan.reason = intended, Reason.DRIFT
    merged: Merged = merge(role, baseline, opinions.proposals)
    plan.merged = plan.target = merged.replicas
    if merged.winner is not None:
        own = merged.winner.source.startswith(OWN)
        plan.reason = opinions.verdicts[role].reason if own else Reason.OVERRIDE_BY_USER
    if merged.clamp is not None:
        plan.reason = merged.clamp


def _fit(config: PlannerConfig, views: Mapping[Role, RoleView], plans: Mapping[Role, RolePlan]) -> list[str]:
    fitted: Fitted = fit_budget(
        {role: plan.target or 0 for role, plan in plans.items()},
        current={role: plan.current or 0 for role, plan in plans.items()},
        minimum={role: config.min_endpoint_of(role) for role in plans},
        gpus={role: view.gpus for role, view in views.items()},
        budget=Budget(config.min_gpu_budget, config.max_gpu_budget),
    )
    for role, rule in fitted.rules.items():
        plans[role].reason = rule
        plans[role].clamp(rule, fitted.targets[role])
    notes = []
    if fitted.floor_unmet:
        notes.append(f"min_gpu_budget is missed by {fitted.floor_unmet} GPUs: no whole replica fits below max_gpu_budget")
    if fitted.over_gpus:
        notes.append(f"the least fleet is {fitted.over_gpus} GPUs above max_gpu_budget: nothing may grow")
    if Reason.GPU_SHAPE_UNKNOWN in fitted.rules.values():
        notes.append("the GPUs of a replica are unknown: scale-ups are refused. Set prefill/decode_engine_num_gpu")
    return notes


def live(proposals: Mapping[str, Proposal], now: float) -> list[Proposal]:
    """The outside proposals in force at `now`."""
    return [p for p in proposals.values() if p.issued_at <= now < p.expires_at]


def opinion(role: Role, p: Proposal) -> int | None:
    """What a proposal says about a role."""
    return None if p.kind is ProposalKind.REJECT else p.targets.get(role)
