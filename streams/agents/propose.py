"""Turn the two loops' verdicts into one SET per role, with the floor of the throughput loop under the load loop."""

from collections.abc import Mapping

from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.reasons import Reason
from headrace.streams.agents.view import RoleView

LOAD_SOURCE, LOAD_PRIORITY = "headrace.load", 10
THROUGHPUT_SOURCE, THROUGHPUT_PRIORITY = "headrace.throughput", 20


def over_floor(verdict: Verdict, current: int, floor: int | None) -> Verdict:
    """The load loop's verdict, lifted to the floor. A scale-down that the floor stops says so."""
    wanted = current if verdict.replicas is None else verdict.replicas
    if floor is None or wanted >= floor:
        return verdict
    evidence = {**verdict.evidence, "floor": floor}
    if floor > current:
        return Verdict(floor, Reason.SCALE_UP, evidence)
    return Verdict(None if floor == current else floor, Reason.SCALE_DOWN_CAPPED_BY_THROUGHPUT, evidence)


def own_verdicts(
    config: PlannerConfig,
    views: Mapping[Role, RoleView],
    load: Mapping[Role, Verdict],
    throughput: Mapping[Role, Verdict],
    floors: Mapping[Role, int | None],
) -> dict[Role, Verdict]:
    """What the planner itself wants for every role in this tick. `load` is empty when the load loop is not due."""
    verdicts = {}
    for role, view in views.items():
        current = view.current
        if not config.load_loop:
            verdicts[role] = throughput.get(role, Verdict.hold(Reason.NOT_DUE))
        elif current is None:
            verdicts[role] = Verdict.hold(Reason.NO_INVENTORY)
        else:
            verdict = load.get(role, Verdict.hold(Reason.NOT_DUE))
            verdicts[role] = over_floor(verdict, current, floors.get(role))
    return verdicts


def own_proposal(config: PlannerConfig, dgd: str, now: float, verdicts: Mapping[Role, Verdict]) -> Proposal | None:
    """The planner's SETs as a proposal for this tick alone, or None when it wants nothing."""
    targets = {role: v.replicas for role, v in verdicts.items() if v.replicas is not None}
    if not targets:
        return None
    source, priority = (LOAD_SOURCE, LOAD_PRIORITY) if config.load_loop else (THROUGHPUT_SOURCE, THROUGHPUT_PRIORITY)
    return Proposal(
        dgd=dgd,
        proposal_id=f"{source}:{now:.3f}",
        source=source,
        kind=ProposalKind.SET,
        issued_at=now,
        expires_at=now + config.base_tick_seconds,
        targets=targets,
        priority=priority,
        reason=", ".join(f"{role}: {verdicts[role].reason}" for role in targets),
    )
