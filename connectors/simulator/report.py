"""What a simulation says about itself, as plain data: goodput, latencies, GPU-hours, actions, a timeline."""

import math
from collections.abc import Iterable, Sequence

import msgspec

from headrace.connectors.simulator.bound import LowerBound
from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import Sla
from headrace.connectors.simulator.request import Request
from headrace.schemas.base import Role


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of `count` values; null where there are none."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class RoleState(msgspec.Struct, frozen=True, kw_only=True):
    ready: int
    starting: int
    draining: int
    target: int


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One interval that ends at `at_s`. Latencies and lengths are means of what was observed in it; null = nothing."""

    at_s: float
    requests_per_s: float
    isl: float | None
    osl: float | None
    ttft_ms: float | None
    itl_ms: float | None
    goodput: float | None  # of the requests that arrived in it
    queued: int  # before their first token, at its end
    inflight: int
    roles: dict[Role, RoleState]


class ActionRow(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    role: Role
    before: int
    after: int


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput: the share of *all* requests with TTFT and mean ITL within the SLA; unfinished and refused miss it."""

    trace: str
    requests: int
    finished: int
    unfinished: int
    refused: int
    duration_s: float
    sla: Sla
    goodput: float
    goodput_ttft: float  # share within the TTFT target alone
    goodput_itl: float  # share within the ITL target alone
    ttft_ms: Percentiles
    itl_ms: Percentiles
    gpu_hours: float
    gpu_hours_of: dict[Role, float]
    fleet_at_start: dict[Role, int]
    fleet_at_end: dict[Role, int]
    actions: list[ActionRow]
    decisions: int
    fpms: int
    output_tokens: int
    timeline: list[TimelineRow]
    bound: LowerBound | None


def percentiles(values: Iterable[float]) -> Percentiles:
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return Percentiles(count=0, mean=None, p50=None, p90=None, p99=None)
    p50, p90, p99 = (_quantile(ordered, q) for q in (0.5, 0.9, 0.99))
    return Percentiles(count=n, mean=math.fsum(ordered) / n, p50=p50, p90=p90, p99=p99)


def _quantile(ordered: Sequence[float], q: float) -> float:
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def share(requests: Sequence[Request], ttft_s: float, itl_s: float) -> float:
    """The share of all requests that meet both targets; 0 of none."""
    return sum(r.meets(ttft_s, itl_s) for r in requests) / len(requests) if requests else 0.0


def ttft_of(requests: Iterable[Request]) -> Percentiles:
    """TTFT in ms of those that got a first token."""
    return percentiles(1000.0 * v for r in requests if (v := r.ttft_s) is not None)


def itl_of(requests: Iterable[Request]) -> Percentiles:
    """Mean ITL per finished request, in ms."""
    return percentiles(1000.0 * v for r in requests if (v := r.itl_s) is not None)


def summarise(
    cluster: Cluster, timeline: list[TimelineRow], *, decisions: int, fpms: int, bound: LowerBound | None
) -> SimulationReport:
    """The report of a cluster as it stands now."""
    requests, sla = cluster.requests, cluster.config.sla
    return SimulationReport(
        trace=cluster.trace.name,
        requests=len(requests),
        finished=sum(r.done for r in requests),
        unfinished=cluster.unfinished,
        refused=cluster.frontend.errors,
        duration_s=cluster.now,
        sla=sla,
        goodput=share(requests, sla.ttft_s, sla.itl_s),
        goodput_ttft=share(requests, sla.ttft_s, math.inf),
        goodput_itl=share(requests, math.inf, sla.itl_s),
        ttft_ms=ttft_of(requests),
        itl_ms=itl_of(requests),
        gpu_hours=cluster.gpu_hours(),
        gpu_hours_of={role: p.gpu_seconds(cluster.now) / 3600.0 for role, p in cluster.pools.items()},
        fleet_at_start=cluster.config.fleet,
        fleet_at_end={role: c.ready for role, c in cluster.counts().items()},
        actions=[ActionRow(at_s=a.at, role=a.role, before=a.before, after=a.after) for a in cluster.actions],
        decisions=decisions,
        fpms=fpms,
        output_tokens=cluster.frontend.output_tokens,
        timeline=timeline,
        bound=bound,
    )
