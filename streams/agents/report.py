"""Write down what a tick knew and did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.speed import line_for
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.tick_report import Proposed, ReferenceOpinion, RoleReport
from headrace.streams.agents.reconcile import RolePlan
from headrace.streams.agents.view import RoleView

KINDS = {PREFILL: Kind.PREFILL, DECODE: Kind.DECODE, AGG: Kind.MIXED}
WORK = {PREFILL: (Kind.PREFILL,), DECODE: (Kind.DECODE,), AGG: tuple(Kind)}
DEMAND = ("demand_rps", "wanted")  # evidence that was seen or asked for rather than estimated


@dataclass(frozen=True, slots=True)
class Findings:
    """What the loops said about one role, the floor in force, where its speed is known from, the reference's word."""

    load: Verdict
    throughput: Verdict
    floor: int | None
    speed_source: str
    reference: ReferenceOpinion | None = None


def role_report(
    view: RoleView, plan: RolePlan, model: EngineModel, findings: Findings, proposals: Sequence[Proposal]
) -> RoleReport:
    """One role's part of the tick report."""
    evidence = {**findings.throughput.evidence, **findings.load.evidence}
    estimated = {name: float(value) for name, value in evidence.items() if name not in DEMAND}
    kind = KINDS.get(view.role)
    if kind is not None and (fit := model.coefficients(kind)) is not None:
        estimated |= {f"fit_{name}": float(value) for name, value in fit.items()}
    unknown = dict(view.unknown)
    if not _speed_known(view.role, model):
        unknown["speed"] = _why_no_speed(view.role, model)
    if (live := model.live_share) is not None:
        estimated["live_share"] = live
    return RoleReport(
        current=plan.current,
        known=view.known() | {name: float(evidence[name]) for name in DEMAND if name in evidence},
        unknown=unknown,
        estimated=estimated,
        proposed=[
            _proposed(view.role, p, plan) for p in proposals if view.role in p.targets or p.kind is ProposalKind.REJECT
        ],
        speed_source=findings.speed_source,
        floor=findings.floor,
        merged=plan.merged,
        clamps=plan.clamps,
        target=plan.target,
        load_reason=findings.load.reason,
        throughput_reason=findings.throughput.reason,
        reason=plan.reason,
        reference=findings.reference,
    )


def _speed_known(role: Role, model: EngineModel) -> bool:
    return line_for(model, role, prefill=role != DECODE, decode=role != PREFILL) is not None


def _why_no_speed(role: Role, model: EngineModel) -> str:
    """How far the learning has come (dynamo#10692)."""
    seen = " and ".join(f"{model.samples(kind)} {kind}" for kind in WORK.get(role, ()))
    return f"{seen} iterations learned, {model.min_observations} are needed; no profile tells it beforehand"


def _proposed(role: Role, p: Proposal, plan: RolePlan) -> Proposed:
    return Proposed(
        proposal_id=p.proposal_id,
        source=p.source,
        kind=p.kind,
        replicas=p.targets.get(role),
        priority=p.priority,
        reason=p.reason,
        used=any(p is used for used in plan.used),
    )


def forecast_numbers(prediction: Prediction | None) -> dict[str, float]:
    """A prediction as numbers, without what it does not know."""
    if prediction is None:
        return {}
    values = {
        "requests_per_s": prediction.requests_per_s,
        "isl": prediction.isl,
        "osl": prediction.osl,
        "horizon_s": prediction.horizon_s,
        "made_at": prediction.made_at,
        "kv_hit_rate": prediction.kv_hit_rate,
        "accept_length": prediction.accept_length,
    }
    values |= {f"requests_per_s_q{level}": value for level, value in prediction.quantiles.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def reasons_of(plans: Mapping[Role, RolePlan]) -> dict[Role, str]:
    return {role: plan.reason for role, plan in plans.items()}
