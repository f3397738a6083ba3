"""The load loop of the reference: one replica up where all engines miss the SLA, one down where none would."""

from collections import Counter

from headrace.models.reference import easy
from headrace.models.reference.decision import LoadDecision
from headrace.models.reference.load_agg import aggregated
from headrace.models.reference.load_combine import combine
from headrace.models.reference.load_sla import Judged, decode, prefill
from headrace.models.reference.settings import Seen
from headrace.models.reference.state import State
from headrace.schemas.base import AGG, PREFILL, Role
from headrace.schemas.reasons import Reason


def decide(state: State, seen: Seen) -> LoadDecision:
    """One run of the loop."""
    roles = state.settings.roles
    if not state.settings.load:
        return LoadDecision(reason=Reason.DISABLED)
    held = _gate(seen, roles)
    if held is not None:
        return LoadDecision(reason=held, reasons=dict.fromkeys(roles, held) if len(roles) > 1 else {})
    judged = {role: _judge(state, seen, role) for role in roles if seen.engines(role)}
    return combine(state, seen, judged)


def _judge(state: State, seen: Seen, role: Role) -> Judged:
    ready, engines = seen.pool(role).ready or 0, seen.engines(role)
    if not state.settings.sla:
        return easy.judge(state, role, engines, ready)
    how = {PREFILL: prefill, AGG: aggregated}.get(role, decode)
    return how(state, engines, ready)


def _gate(seen: Seen, roles: tuple[Role, ...]) -> Reason | None:
    """Why nothing may be decided now. One role is looked at in another order than two."""
    silent = not any(seen.engines(role) for role in roles)
    moving = any(seen.pool(role).in_progress for role in roles)
    single = roles[0] != AGG and len(roles) == 1
    if single and moving:
        return Reason.SCALING_IN_PROGRESS
    if silent:
        return Reason.NO_FPM_DATA
    if moving:
        return Reason.SCALING_IN_PROGRESS
    return Reason.WORKER_COUNT_MISMATCH if any(_mismatch(seen, role) for role in roles) else None


def _mismatch(seen: Seen, role: Role) -> bool:
    """Do other workers speak than are ready, or with different numbers of ranks? Silence of all is none."""
    engines = seen.engines(role)
    ready = seen.pool(role).ready
    ranks = Counter(fpm.worker_id for fpm in engines)
    return bool(engines) and (len(ranks) != ready or len(set(ranks.values())) != 1)
