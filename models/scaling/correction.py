"""The correction-factor planner of Dynamo 0.4.1: profiles, and how far off they were in the last interval.

A proposer beside the throughput loop, for fleets that are profiled but send no FPMs. Source: reference-semantics 11.3;
docs/correction-planner.md says what it cannot see, above all queues in front of prefill.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.models.profile.tables import DecodeTable, PrefillTable
from headrace.models.scaling.throughput import replicas_for
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import DECODE, PREFILL, Role
from headrace.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Window:
    """Means over one interval of `seconds`; None = unknown. `requests` counts arrivals, lengths are tokens."""

    seconds: float
    requests: float | None
    isl: float | None
    osl: float | None
    ttft_s: float | None
    itl_s: float | None
    request_duration_s: float | None
    decode_workers: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """What is forecast: requests per second, and their mean lengths in tokens."""

    requests_per_s: float
    isl: float
    osl: float


@dataclass(frozen=True, slots=True)
class Engines:
    """What was profiled, what a replica costs in GPUs, the least replicas, and the ITL to keep."""

    prefill: PrefillTable
    decode: DecodeTable
    gpus: Mapping[Role, int]
    minimum: Mapping[Role, int]
    itl_sla_s: float


@dataclass(frozen=True, slots=True)
class Factors:
    """Seen latency over profiled latency; 1 = as profiled, and before anything was seen."""

    prefill: float = 1.0
    decode: float = 1.0


def correction_verdicts(
    window: Window, load: Load | None, engines: Engines, before: Factors, *, correct: bool = True
) -> tuple[Factors, dict[Role, Verdict]]:
    """(the factors from now on, what each role should have). Without `correct` the window teaches nothing.

    Both roles hold where something is unknown: half a deployment sized by a forecast would only move the queue.
    """
    factors, missing = corrected(window, engines, before) if correct else (before, None)
    if missing is None and load is None:
        missing = Reason.PREDICT_FAILED
    if missing is not None or load is None:
        return factors, {role: Verdict.hold(missing or Reason.PREDICT_FAILED) for role in (PREFILL, DECODE)}
    return factors, sized(load, engines, factors)


def corrected(window: Window, engines: Engines, before: Factors) -> tuple[Factors, Reason | None]:
    """The factors after a window, and what was missing for one of them: it then keeps its value.

    `prefill` is TTFT over the profile's at the mean prompt length; `decode` is ITL over the profile's at the
    concurrency of a decode worker (Little's law) and the mean context.
    """
    w = window
    ttft, itl, isl, osl = (_finite(v) for v in (w.ttft_s, w.itl_s, w.isl, w.osl))
    if ttft is None or itl is None or isl is None or osl is None:
        return before, Reason.NO_TRAFFIC_DATA
    prefill = ttft / engines.prefill.ttft_s(isl)
    requests, duration = _finite(w.requests), _finite(w.request_duration_s)
    if requests is None or duration is None:
        return Factors(prefill, before.decode), Reason.NO_TRAFFIC_DATA
    if not w.decode_workers:
        return Factors(prefill, before.decode), Reason.NO_INVENTORY
    concurrency = requests / w.decode_workers * duration / w.seconds
    decode = itl / engines.decode.itl_s(concurrency, isl + osl / 2)
    return Factors(prefill, decode), None


def sized(load: Load, engines: Engines, factors: Factors) -> dict[Role, Verdict]:
    """Replicas for a load.

    Prefill serves its prompt tokens at the profiled throughput; its factor can only lower what is needed. Decode serves
    its output tokens at the best profiled throughput whose ITL, times its factor, meets the target.
    """
    prompt_tokens = load.requests_per_s * load.isl * min(1.0, factors.prefill)
    prefill = engines.prefill.throughput_per_gpu(load.isl)
    target_s = engines.itl_sla_s / factors.decode if factors.decode > 0 else engines.itl_sla_s
    best = engines.decode.find_best_throughput_per_gpu(target_s, load.isl + load.osl / 2)
    evidence: dict[Role, Mapping[str, float]] = {
        PREFILL: {
            "prefill_correction": factors.prefill,
            "tokens_per_s": prompt_tokens,
            "tokens_per_s_per_gpu": prefill,
        },
        DECODE: {
            "decode_correction": factors.decode,
            "tokens_per_s": load.requests_per_s * load.osl,
            "tokens_per_s_per_gpu": best.throughput_per_gpu,
            "itl_ms": 1000 * best.itl_s * factors.decode,
            "capacity_meets_sla": float(best.meets_sla),
        },
    }
    verdicts = {}
    for role, seen in evidence.items():
        per_replica = seen["tokens_per_s_per_gpu"] * engines.gpus[role]
        if per_replica <= 0 or not math.isfinite(seen["tokens_per_s"]):
            return {r: Verdict.hold(Reason.MODEL_NOT_READY, **evidence[r]) for r in evidence}
        replicas = replicas_for(max(0.0, seen["tokens_per_s"]), per_replica, engines.minimum[role])
        verdicts[role] = Verdict(replicas, Reason.SCALE, seen)
    return verdicts


def limited(verdicts: Mapping[Role, Verdict], load: Load, engines: Engines, most_growth: float) -> dict[Role, Verdict]:
    """The verdicts, but no role at more than `most_growth` times what the profiles alone ask for.

    A factor that was measured while workers warmed up asks for a fleet that the load never needs. Limiting it against
    the last corrected count would let it grow on itself, so the limit is of what was not corrected (dynamo#12430).
    """
    alone = sized(load, engines, Factors())
    found = dict(verdicts)
    for role, verdict in verdicts.items():
        base = alone[role].replicas
        if verdict.replicas is None or base is None:
            continue
        most = max(engines.minimum[role], math.ceil(most_growth * base))
        if verdict.replicas > most:
            evidence = {**verdict.evidence, "uncorrected": base, "unlimited": verdict.replicas}
            found[role] = Verdict(most, Reason.CORRECTION_LIMIT, evidence)
    return found


def share_ceiling(targets: Mapping[Role, int], engines: Engines, ceiling_gpus: int) -> dict[Role, int]:
    """Both roles scaled down in proportion until `ceiling_gpus` hold; negative = no ceiling.

    Prefill is rounded, halves to even, and decode gets what remains, as in the reference. There decode is rounded too,
    so that the sum can end up above the ceiling; here it is not, unless the least replicas alone are above it. No role
    ends up with more than it asked for.
    """
    prefill, decode = targets[PREFILL], targets[DECODE]
    cost, least = engines.gpus, engines.minimum
    total = prefill * cost[PREFILL] + decode * cost[DECODE]
    if not 0 <= ceiling_gpus < total:
        return dict(targets)
    prefill = max(least[PREFILL], round(prefill * ceiling_gpus / total))
    decode = max(least[DECODE], min(decode, (ceiling_gpus - prefill * cost[PREFILL]) // cost[DECODE]))
    room = (ceiling_gpus - decode * cost[DECODE]) // cost[PREFILL]
    return {PREFILL: max(least[PREFILL], min(prefill, room)), DECODE: decode}


def _finite(value: float | None) -> float | None:
    """The value where it is known: NaN and infinities are not."""
    return value if value is not None and math.isfinite(value) else None
