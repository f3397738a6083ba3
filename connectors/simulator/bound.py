"""A lower bound to compare with: per minute, the replicas that its load needs, if scaling were instant and perfect.

Analytic, from the timing model under the SLA; it knows no queueing within a minute, no start-up and no drain.
"""

import math
from collections.abc import Callable

import msgspec

from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.base import AGG, DECODE, PREFILL, Role

MINUTE_S = 60.0


class MinuteNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One minute of the trace. `replicas` is null where no number of workers meets the SLA."""

    start_s: float
    seconds: float
    requests_per_s: float
    isl: float | None  # mean tokens; null = no request
    osl: float | None
    replicas: dict[Role, int] | None


class LowerBound(msgspec.Struct, frozen=True, kw_only=True):
    """`gpu_hours` is null when a minute cannot meet the SLA with any number of workers."""

    gpu_hours: float | None
    minutes: list[MinuteNeed]


def prefill_tokens_per_s(config: SimulatorConfig, role: Role = PREFILL) -> float:
    """Prompt tokens per second of one worker in the largest batch that ends within the TTFT target; 0 = none does."""
    p, most = config.timing.prefill, config.roles[role].limits.max_num_batched_tokens
    tokens = _largest(most, lambda n: p.seconds(n) <= config.sla.ttft_s)
    return tokens / p.seconds(tokens) if tokens else 0.0


def decode_tokens_per_s(config: SimulatorConfig, isl: float, osl: float) -> float:
    """Output tokens per second of one worker in the largest batch that keeps the ITL target; 0 = none does.

    A request occupies isl + osl/2 tokens of KV on average, and isl + osl are reserved for it.
    """
    d, limits = config.timing.decode, config.roles[DECODE].limits
    context = isl + osl / 2.0
    most = min(limits.max_num_seqs, int(limits.max_kv_tokens / (isl + osl)))
    n = _largest(most, lambda n: d.seconds(n, n * context) <= config.sla.itl_s)
    return n / d.seconds(n, n * context) if n else 0.0


def agg_requests_per_s(config: SimulatorConfig, isl: float, osl: float) -> float:
    """Requests per second of one aggregated worker in steady state; 0 = the SLA cannot be met.

    `n` requests decode while the prompts that replace them, n * isl / osl tokens per iteration, are computed beside
    them; such an iteration must keep the ITL target, and a whole prompt the TTFT target.
    """
    limits, sla = config.roles[AGG].limits, config.sla
    context = isl + osl / 2.0

    def seconds(n: int) -> float:
        return config.timing.seconds(n * isl / osl, 0.0, n, n * context)

    def fits(n: int) -> bool:
        tokens = n * isl / osl
        room = limits.max_num_batched_tokens - n
        return tokens <= room and seconds(n) <= sla.itl_s and math.ceil(isl / room) * seconds(n) <= sla.ttft_s

    n = _largest(min(limits.max_num_seqs, int(limits.max_kv_tokens / (isl + osl))), fits)
    return n / (osl * seconds(n)) if n else 0.0


def lower_bound(trace: Trace, config: SimulatorConfig) -> LowerBound:
    """GPU-hours that the trace needs at least, minute by minute; no role goes below one replica."""
    end = max(trace.duration_s, 1.0)
    minutes = max(1, math.ceil(end / MINUTE_S))
    requests, isl, osl = [0] * minutes, [0] * minutes, [0] * minutes
    for at, prompt, output in trace.rows():
        m = min(int(at / MINUTE_S), minutes - 1)
        requests[m] += 1
        isl[m] += prompt
        osl[m] += output
    needs = [
        _need(config, m * MINUTE_S, min(MINUTE_S, end - m * MINUTE_S), requests[m], isl[m], osl[m])
        for m in range(minutes)
    ]
    hours = 0.0
    for need in needs:
        if need.replicas is None:
            return LowerBound(gpu_hours=None, minutes=needs)
        gpus = sum(config.roles[role].gpus_per_replica * n for role, n in need.replicas.items())
        hours += gpus * need.seconds / 3600.0
    return LowerBound(gpu_hours=hours, minutes=needs)


def _need(
    config: SimulatorConfig, start_s: float, seconds: float, requests: int, isl_sum: int, osl_sum: int
) -> MinuteNeed:
    if not requests:
        idle = dict.fromkeys(config.roles, 1)
        return MinuteNeed(start_s=start_s, seconds=seconds, requests_per_s=0.0, isl=None, osl=None, replicas=idle)
    isl, osl, rate = isl_sum / requests, osl_sum / requests, requests / seconds
    if config.disaggregated:
        loads = {
            PREFILL: (isl_sum / seconds, prefill_tokens_per_s(config)),
            DECODE: (
                (osl_sum - requests) / seconds,
                decode_tokens_per_s(config, isl, osl),
            ),  # the first comes from prefill
        }
    else:
        loads = {AGG: (rate, agg_requests_per_s(config, isl, osl))}
    met = all(capacity > 0.0 for _, capacity in loads.values())
    replicas = {role: max(1, math.ceil(load / capacity)) for role, (load, capacity) in loads.items()} if met else None
    return MinuteNeed(start_s=start_s, seconds=seconds, requests_per_s=rate, isl=isl, osl=osl, replicas=replicas)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 1..most with fits(n), for a condition that holds up to some n; 0 = not even 1."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
