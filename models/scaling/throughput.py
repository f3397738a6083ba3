"""The throughput loop: how many engines the forecast rate needs. Source: reference-semantics 5.1."""

import math
from collections.abc import Mapping

from headrace.models.perf.capacity import Capacity
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import Role
from headrace.schemas.reasons import Reason


def replicas_for(demand_rps: float, engine_rps: float, min_endpoint: int) -> int:
    """Engines for a demand, both in requests/s: ceil(demand / engine), never below `min_endpoint`.

    A hair above an integer (1e-9 relative) is rounding, not demand.
    """
    ratio = demand_rps / engine_rps
    return max(math.ceil(ratio - 1e-9 * max(1.0, ratio)), min_endpoint)


def throughput_verdicts(
    demand_rps: float, capacities: Mapping[Role, Capacity | None], min_endpoints: Mapping[Role, int]
) -> dict[Role, Verdict]:
    """A floor for every role, or for none: half a deployment sized by a forecast would only move the queue.

    An SLA that no load meets still gives a capacity (the point that violates it least): more replicas cannot speed up
    one request, so demand alone sizes the fleet (dynamo#8861).
    """
    missing = [role for role, c in capacities.items() if c is None or c.requests_per_s <= 0]
    if missing:
        return {
            role: Verdict.hold(Reason.MODEL_NOT_READY if role in missing else Reason.PARTNER_NOT_READY)
            for role in capacities
        }
    verdicts = {}
    for role, c in capacities.items():
        assert c is not None
        replicas = replicas_for(max(0.0, demand_rps), c.requests_per_s, min_endpoints[role])
        evidence = {
            "demand_rps": demand_rps,
            "capacity_rps": c.requests_per_s,
            "capacity_meets_sla": float(c.meets_sla),
        }
        verdicts[role] = Verdict(replicas, Reason.SCALE, evidence)
    return verdicts
