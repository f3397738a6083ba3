"""Fixed fleets to compare a policy with: the cheapest that does no worse, the best that costs no more, the line."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, product

import msgspec

from headrace.connectors.simulator.bound import lower_bound
from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.policy import FixedFleet
from headrace.connectors.simulator.report import Percentiles
from headrace.connectors.simulator.simulate import Options, simulate
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.base import Role
from headrace.schemas.errors import ConfigError

Fleet = Mapping[Role, int]


class FleetResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet that never changes achieves on a trace."""

    fleet: dict[Role, int]
    goodput: float
    gpu_hours: float
    ttft_ms: Percentiles
    itl_ms: Percentiles


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's result beside fixed fleets; null where the sweep holds no such fleet."""

    goodput: float
    gpu_hours: float
    cheapest_no_worse: FleetResult | None
    best_no_dearer: FleetResult | None
    goodput_at_equal_gpu_hours: float | None  # on the line between fixed fleets


def candidate_fleets(trace: Trace, config: SimulatorConfig, *, limit: int = 24) -> list[dict[Role, int]]:
    """Fleets worth trying: each role from its mean need to a little above its peak need, at most `limit` in all.

    Raises ConfigError where no fleet can meet the SLA: then there is nothing to compare at equal quality.
    """
    minutes = lower_bound(trace, config).minutes
    ranges: dict[Role, range] = {}
    for role in config.roles:
        needs = [minute.replicas[role] for minute in minutes if minute.replicas is not None]
        if not needs:
            raise ConfigError("no number of workers meets the SLA on this trace: give fleets by hand, or a looser SLA")
        low = max(1, math.floor(sum(needs) / len(needs)))
        ranges[role] = range(low, max(needs) + 2)
    while math.prod(len(r) for r in ranges.values()) > limit:
        widest = max(ranges, key=lambda role: len(ranges[role]))
        r = ranges[widest]
        ranges[widest] = range(r.start, r.stop, r.step + 1)
    return [dict(zip(ranges, fleet, strict=True)) for fleet in product(*ranges.values())]


def static_sweep(
    trace: Trace,
    config: SimulatorConfig,
    fleets: Sequence[Fleet],
    *,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[FleetResult]:
    """Run each fleet over the trace, unchanging and without telemetry. `progress` gets the share of fleets done."""
    results = []
    for done, fleet in enumerate(fleets, start=1):
        options = Options(seed=seed, telemetry=False, bound=False)
        report = simulate(trace, config.with_fleet(fleet), FixedFleet(), options)
        results.append(
            FleetResult(
                fleet=report.fleet_at_start,
                goodput=report.goodput,
                gpu_hours=report.gpu_hours,
                ttft_ms=report.ttft_ms,
                itl_ms=report.itl_ms,
            )
        )
        if progress is not None:
            progress(done / len(fleets))
    return results


def cheapest_no_worse(results: Iterable[FleetResult], goodput: float) -> FleetResult | None:
    """The fewest GPU-hours among the fleets with at least that goodput."""
    return min((r for r in results if r.goodput >= goodput), key=lambda r: (r.gpu_hours, -r.goodput), default=None)


def best_no_dearer(results: Iterable[FleetResult], gpu_hours: float) -> FleetResult | None:
    """The highest goodput among the fleets that cost at most that much."""
    return max((r for r in results if r.gpu_hours <= gpu_hours), key=lambda r: (r.goodput, -r.gpu_hours), default=None)


def frontier(results: Iterable[FleetResult]) -> list[FleetResult]:
    """The fleets that no cheaper one beats, from the cheapest to the best."""
    line: list[FleetResult] = []
    for r in sorted(results, key=lambda r: (r.gpu_hours, -r.goodput)):
        if not line or r.goodput > line[-1].goodput:
            line.append(r)
    return line


def goodput_on_line(results: Iterable[FleetResult], gpu_hours: float) -> float | None:
    """Goodput of fixed fleets at that cost, linear between the neighbours of the frontier. None below the cheapest."""
    line = frontier(results)
    if not line or gpu_hours < line[0].gpu_hours:
        return None
    for left, right in pairwise(line):
        if gpu_hours < right.gpu_hours:
            part = (gpu_hours - left.gpu_hours) / (right.gpu_hours - left.gpu_hours)
            return left.goodput + part * (right.goodput - left.goodput)
    return line[-1].goodput


def compare(results: Sequence[FleetResult], goodput: float, gpu_hours: float) -> Comparison:
    """A policy's goodput and cost beside a sweep."""
    return Comparison(
        goodput=goodput,
        gpu_hours=gpu_hours,
        cheapest_no_worse=cheapest_no_worse(results, goodput),
        best_no_dearer=best_no_dearer(results, gpu_hours),
        goodput_at_equal_gpu_hours=goodput_on_line(results, gpu_hours),
    )
