"""From what the roles ask for to a proposal: floors, the least count, the GPU budget, and which reason is told."""

from collections.abc import Mapping

from headrace.models.reference.decision import CAPPED, REFUSED, LoadDecision, Sub
from headrace.models.reference.load_sla import Judged
from headrace.models.reference.settings import Seen
from headrace.models.reference.state import State
from headrace.schemas.base import AGG, Role
from headrace.schemas.reasons import Reason

TOLD_FIRST = (Reason.SCALE_UP, CAPPED, Reason.SCALE_DOWN, Reason.NO_CHANGE)
INFORMATIVE = frozenset({REFUSED, CAPPED, Reason.INSUFFICIENT_DATA})


def combine(state: State, seen: Seen, judged: Mapping[Role, Judged]) -> LoadDecision:
    roles = state.settings.roles
    if len(roles) > 1:
        return _pair(state, seen, judged)
    (role,) = roles
    current, one = seen.pool(role).ready or 0, judged[role]
    if one.sub.replicas is None:
        return _told(LoadDecision(reason=one.sub.reason), judged)
    found = _aggregated if role == AGG and state.settings.sla else _single
    return _told(found(state, role, one.sub, current), judged)


def _told(decision: LoadDecision, judged: Mapping[Role, Judged]) -> LoadDecision:
    """With the estimates that it was made of."""
    ttft = max((j.ttft_ms for j in judged.values() if j.ttft_ms is not None), default=None)
    itl = max((j.itl_ms for j in judged.values() if j.itl_ms is not None), default=None)
    return LoadDecision(decision.targets, decision.reason, decision.reasons, ttft, itl)


def _floor(state: State, role: Role, replicas: int) -> int:
    return max(replicas, state.floors[role]) if state.settings.throughput else replicas


def _single(state: State, role: Role, sub: Sub, current: int) -> LoadDecision:
    """A proposal even where it is the count that is there."""
    assert sub.replicas is not None
    floored = _floor(state, role, sub.replicas)
    target = state.within_budget({role: floored})
    reason = _reason(sub.replicas, floored, target[role], current)
    return LoadDecision(target, Reason.NO_CHANGE if target[role] == current else reason)


def _aggregated(state: State, role: Role, sub: Sub, current: int) -> LoadDecision:
    """No proposal of the count that is there."""
    assert sub.replicas is not None
    least = max(sub.replicas, state.settings.min_endpoint)
    floored = _floor(state, role, least)
    target = state.within_budget({role: floored})
    reason = _reason(sub.replicas, floored, target[role], current)
    if target[role] != current:
        return LoadDecision(target, reason)
    return LoadDecision(reason=sub.reason if sub.reason is REFUSED and reason is Reason.NO_CHANGE else reason)


def _reason(asked: int, floored: int, target: int, current: int) -> Reason:
    """A step down that a floor has stopped or shortened is told as such."""
    if target > current:
        return Reason.SCALE_UP
    if asked < current and floored > asked:
        return CAPPED
    return Reason.SCALE_DOWN if target < current else Reason.NO_CHANGE


def _pair(state: State, seen: Seen, judged: Mapping[Role, Judged]) -> LoadDecision:
    roles = state.settings.roles
    current = {role: seen.pool(role).ready or 0 for role in roles}
    subs = {role: judged[role].sub for role in judged}
    asked = current | {role: sub.replicas for role, sub in subs.items() if sub.replicas is not None}
    floored = {role: _floor(state, role, asked[role]) for role in roles}
    targets = state.within_budget({role: max(n, state.settings.min_endpoint) for role, n in floored.items()})
    reasons = {role: _reason(asked[role], floored[role], targets[role], current[role]) for role in roles}
    if targets != current:
        return _told(LoadDecision(targets, min(reasons.values(), key=TOLD_FIRST.index), reasons), judged)
    told = reasons | {role: sub.reason for role, sub in subs.items() if sub.reason in INFORMATIVE}
    informative = [reason for reason in told.values() if reason in INFORMATIVE]
    return _told(LoadDecision(reason=informative[0] if informative else Reason.NO_CHANGE, reasons=told), judged)
