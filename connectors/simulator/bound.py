"""A lower bound to compare with: per minute, the replicas that its load needs, if scaling were instant and perfect.

Analytic, from the timing model under the SLA; it knows no queueing within a minute, no start-up and no drain.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.traces import Row, Trace
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


@dataclass(frozen=True, slots=True)
class Mix:
    """What the requests are like, in tokens. `context` and `reserved` are means over the time of decoding.

    A request decodes for about osl iterations with isl + osl/2 tokens of context, so a longer one weighs more:
    context = sum(osl * (isl + osl/2)) / sum(osl), and reserved likewise with isl + osl.
    """

    isl: float
    osl: float
    context: float
    reserved: float

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Mix":
        """Of at least one request."""
        requests = isl = osl = 0
        context = reserved = 0.0
        for _, prompt, output in rows:
            requests += 1
            isl += prompt
            osl += output
            context += output * (prompt + output / 2.0)
            reserved += output * (prompt + output)
        return cls(isl / requests, osl / requests, context / osl, reserved / osl)


def prefill_tokens_per_s(config: SimulatorConfig) -> float:
    """Prompt tokens per second of one worker in the largest batch that ends within the TTFT target; 0 = none does."""
    p, most = config.timing.prefill, config.roles[PREFILL].limits.max_num_batched_tokens
    tokens = _largest(most, lambda n: p.seconds(n) <= config.sla.ttft_s)
    return tokens / p.seconds(tokens) if tokens else 0.0


def decode_tokens_per_s(config: SimulatorConfig, mix: Mix) -> float:
    """Output tokens per second of one worker in the largest batch that keeps the ITL target; 0 = none does."""
    d, limits = config.timing.decode, config.roles[DECODE].limits
    most = min(limits.max_num_seqs, int(limits.max_kv_tokens / mix.reserved))
    n = _largest(most, lambda n: d.seconds(n, n * mix.context) <= config.sla.itl_s)
    return n / d.seconds(n, n * mix.context) if n else 0.0


def agg_requests_per_s(config: SimulatorConfig, mix: Mix) -> float:
    """Requests per second of one aggregated worker in steady state; 0 = the SLA cannot be met.

    While `n` requests decode, n * isl / osl prompt tokens per iteration come in. They are cheapest computed together,
    as many as the batch limit leaves room for: then a share of the iterations is mixed, and the others only decode.
    The mean iteration must keep the ITL target, the mixed iterations that one prompt needs the TTFT target.
    """
    limits, sla, timing = config.roles[AGG].limits, config.sla, config.timing

    def room(n: int) -> int:
        return limits.max_num_batched_tokens - n

    def mean_s(n: int) -> float:
        tokens = n * mix.isl / mix.osl
        mixed = timing.seconds(room(n), 0.0, n, n * mix.context)
        return timing.decode.seconds(n, n * mix.context) + tokens / room(n) * (
            mixed - timing.decode.seconds(n, n * mix.context)
        )

    def fits(n: int) -> bool:
        if room(n) < n * mix.isl / mix.osl or room(n) <= 0 or mean_s(n) > sla.itl_s:
            return False
        chunk = min(mix.isl, room(n))
        return mix.isl / chunk * timing.seconds(chunk, 0.0, n, n * mix.context) <= sla.ttft_s

    n = _largest(min(limits.max_num_seqs, int(limits.max_kv_tokens / mix.reserved)), fits)
    return n / (mix.osl * mean_s(n)) if n else 0.0


def lower_bound(trace: Trace, config: SimulatorConfig) -> LowerBound:
    """GPU-hours that the trace needs at least, minute by minute; no role goes below one replica."""
    end = max(trace.duration_s, 1.0)
    minutes: list[list[Row]] = [[] for _ in range(max(1, math.ceil(end / MINUTE_S)))]
    for row in trace.rows():
        minutes[min(int(row[0] / MINUTE_S), len(minutes) - 1)].append(row)
    needs = [_need(config, m * MINUTE_S, min(MINUTE_S, end - m * MINUTE_S), rows) for m, rows in enumerate(minutes)]
    hours = 0.0
    for need in needs:
        if need.replicas is None:
            return LowerBound(gpu_hours=None, minutes=needs)
        gpus = sum(config.roles[role].gpus_per_replica * n for role, n in need.replicas.items())
        hours += gpus * need.seconds / 3600.0
    return LowerBound(gpu_hours=hours, minutes=needs)


def _need(config: SimulatorConfig, start_s: float, seconds: float, rows: list[Row]) -> MinuteNeed:
    if not rows:
        idle = dict.fromkeys(config.roles, 1)
        return MinuteNeed(start_s=start_s, seconds=seconds, requests_per_s=0.0, isl=None, osl=None, replicas=idle)
    mix, rate = Mix.of(rows), len(rows) / seconds
    if config.disaggregated:
        loads = {
            PREFILL: (rate * mix.isl, prefill_tokens_per_s(config)),
            DECODE: (rate * (mix.osl - 1.0), decode_tokens_per_s(config, mix)),  # the first token comes from prefill
        }
    else:
        loads = {AGG: (rate, agg_requests_per_s(config, mix))}
    met = all(capacity > 0.0 for _, capacity in loads.values())
    return MinuteNeed(
        start_s=start_s,
        seconds=seconds,
        requests_per_s=rate,
        isl=mix.isl,
        osl=mix.osl,
        replicas={role: max(1, math.ceil(load / capacity)) for role, (load, capacity) in loads.items()}
        if met
        else None,
    )


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
