"""The throughput loop of the reference: engines for a forecast load, at once or as floors of the load loop."""

import math
from collections.abc import Mapping

from headrace.models.reference.capacity import Capacity, Demand, find_capacity
from headrace.models.reference.decision import ThroughputDecision
from headrace.models.reference.forecast import Prediction
from headrace.models.reference.state import State
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.reasons import Reason


def decide(state: State, prediction: Prediction, duration_s: float) -> ThroughputDecision:
    """`duration_s` is the window that the predicted requests come in.

    Sets floors where the load loop is on. Raises ValueError for a predicted length that is no number.
    """
    settings = state.settings
    if not settings.throughput:
        return ThroughputDecision(reason=Reason.DISABLED)
    if prediction.num_req is None or prediction.isl is None or prediction.osl is None:
        return ThroughputDecision()
    if duration_s <= 0:
        return ThroughputDecision(reason=Reason.NO_TRAFFIC_DATA)
    found = {role: _capacity(state, role, prediction) for role in settings.roles}
    rates = {role: c.requests_per_s for role, c in found.items() if c is not None and c.requests_per_s > 0}
    if len(rates) < len(found):
        return _not_ready(settings.roles, rates)
    demand = prediction.num_req / duration_s
    targets = {role: max(math.ceil(demand / rate), settings.min_endpoint) for role, rate in rates.items()}
    if settings.load:
        state.floors.update(targets)
        return _said({}, Reason.SET_LOWER_BOUND, settings.roles, rates)
    return _said(state.within_budget(targets), Reason.SCALE, settings.roles, rates)


def _capacity(state: State, role: Role, prediction: Prediction) -> Capacity | None:
    settings = state.settings
    if role == AGG and not (state.engine(AGG).max_num_batched_tokens or 0) > 0:
        return None
    assert prediction.isl is not None
    assert prediction.osl is not None
    demand = Demand(
        isl=prediction.isl,
        osl=prediction.osl,
        ttft_ms=settings.ttft_ms if role != DECODE else None,
        itl_ms=settings.itl_ms if role != PREFILL else None,
        kv_hit_rate=state.kv_hit_rate if role != DECODE else None,
        accept_length=state.accepted if role != PREFILL else None,
    )
    return find_capacity(state.models[role], demand)


def _said(
    targets: Mapping[Role, int], reason: Reason, roles: tuple[Role, ...], rates: Mapping[Role, float]
) -> ThroughputDecision:
    return ThroughputDecision(targets, reason, dict.fromkeys(roles, reason) if len(roles) > 1 else {}, rates)


def _not_ready(roles: tuple[Role, ...], rates: Mapping[Role, float]) -> ThroughputDecision:
    """Half a fleet is not sized: the side that could be waits for the other."""
    if len(roles) == 1:
        return ThroughputDecision(reason=Reason.MODEL_NOT_READY, requests_per_s=rates)
    reasons = {role: Reason.PARTNER_NOT_READY if role in rates else Reason.MODEL_NOT_READY for role in roles}
    return ThroughputDecision(reason=Reason.MODEL_NOT_READY, reasons=reasons, requests_per_s=rates)
