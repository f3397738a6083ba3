"""How many requests per second one engine serves within its SLA: a search over batch sizes.

Source: reference-semantics 3.6. Differs where nothing meets the SLA: the reference then answers with the point of
highest throughput, that is of the worst latency (weak spot 7); here it is the point that violates the SLA least.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits, acceptance, cached_share
from headrace.models.perf.line import Array, Line
from headrace.models.perf.speed import line_for
from headrace.schemas.base import AGG, DECODE, PREFILL, Role

CANDIDATES = 128  # batch sizes looked at, evenly spread


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What one request asks of an engine: tokens of prompt and output, the share of the prompt that is cached (None =
    unknown), and output tokens per decode iteration."""

    isl: float
    osl: float
    kv_hit_rate: float | None = None
    accept_length: float = 1.0


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    """The SLA, seconds; None = no constraint."""

    ttft_s: float | None = None
    itl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The best operating point of one engine. `ttft_s` is None for decode engines, `itl_s` for prefill engines."""

    requests_per_s: float
    batch: int
    ttft_s: float | None
    itl_s: float | None
    meets_sla: bool


@dataclass(frozen=True, slots=True)
class _Work:
    """One request: prompt tokens to compute, output tokens, KV tokens held on average, output tokens per iteration."""

    prompt: float
    output: float
    context: float
    accept: float


@dataclass(frozen=True, slots=True)
class _Points:
    """Operating points, one per batch size; every array has shape (n,)."""

    batch: Array
    rps: Array
    ttft_s: Array | None = None
    itl_s: Array | None = None


def capacity(
    model: EngineModel,
    role: Role,
    limits: EngineLimits,
    shape: RequestShape,
    targets: LatencyTargets,
) -> Capacity | None:
    """The batch size of highest throughput that meets the SLA of `role` (prefill: TTFT, decode: ITL, aggregated: both).

    Where none does, the one that violates it least, with `meets_sla` False. None (no estimate) where a length or a
    target is not a positive number, one request does not fit, or the model is not ready. The result changes with the
    arguments and `model.revision` alone.
    """
    by_role = {PREFILL: (targets.ttft_s, None), DECODE: (None, targets.itl_s), AGG: (targets.ttft_s, targets.itl_s)}
    sla = by_role.get(role)
    if sla is None or not _positive(shape.isl) or not (role == PREFILL or _positive(shape.osl)):
        return None
    if any(s is not None and not _positive(s) for s in sla):
        return None
    work = _work(role, shape)
    if work.context > limits.max_kv_tokens or min(limits.max_num_batched_tokens, limits.max_num_seqs) < 1:
        return None
    points = _POINTS[role](model, limits, work)
    return None if points is None else _choose(points, *sla)


def _work(role: Role, shape: RequestShape) -> _Work:
    prompt, output = math.ceil(shape.isl), math.ceil(shape.osl) if _positive(shape.osl) else 1
    return _Work(
        prompt=math.ceil(prompt * (1.0 - cached_share(shape.kv_hit_rate))),
        output=output,
        context=prompt if role == PREFILL else prompt + output // 2,
        accept=acceptance(shape.accept_length),
    )


def _prefill(model: EngineModel, limits: EngineLimits, work: _Work) -> _Points | None:
    line = line_for(model, PREFILL, prefill=True, decode=False)
    if line is None:
        return None
    at_once = limits.max_num_batched_tokens // work.prompt
    batch = _batches(min(limits.max_num_seqs, max(1.0, at_once)))
    ttft = _chunked(
        line, batch * work.prompt, limits.max_num_batched_tokens, np.zeros_like(batch), np.zeros_like(batch)
    )
    return _Points(batch, batch / ttft, ttft_s=ttft)


def _decode(model: EngineModel, limits: EngineLimits, work: _Work) -> _Points | None:
    line = line_for(model, DECODE, prefill=False, decode=True)
    if line is None:
        return None
    batch = _batches(min(limits.max_num_seqs, limits.max_kv_tokens // work.context))
    itl = line.at_each(np.zeros_like(batch), batch, batch * work.context) / work.accept
    return _Points(batch, batch / (work.output * itl), itl_s=itl)


def _aggregated(model: EngineModel, limits: EngineLimits, work: _Work) -> _Points | None:
    """In steady state every iteration prefills what replaces its finished requests, beside the decode tokens."""
    line = line_for(model, AGG, prefill=True, decode=True)
    budget = limits.max_num_batched_tokens
    if line is None:
        return None
    batch = _batches(min(limits.max_num_seqs, limits.max_kv_tokens // work.context, budget - 1))
    prefill = np.ceil(batch * work.accept * work.prompt / work.output)
    fits = prefill <= budget - batch
    batch, prefill = batch[fits], prefill[fits]
    if not len(batch):
        return None
    kv = batch * work.context
    itl = line.at_each(prefill, batch, kv) / work.accept
    ttft = _chunked(line, prefill + work.prompt, budget, batch, kv)
    return _Points(batch, batch / (work.output * itl), ttft_s=ttft, itl_s=itl)


_POINTS: dict[Role, Callable[[EngineModel, EngineLimits, _Work], _Points | None]] = {
    PREFILL: _prefill,
    DECODE: _decode,
    AGG: _aggregated,
}


def _choose(points: _Points, ttft_sla_s: float | None, itl_sla_s: float | None) -> Capacity:
    """Highest throughput among those that meet the SLA, else least violation; the smaller batch on a tie."""
    violation = np.ones_like(points.batch)
    for latency, sla in ((points.ttft_s, ttft_sla_s), (points.itl_s, itl_sla_s)):
        if latency is not None and sla is not None:
            violation = np.maximum(violation, latency / sla)
    meets = violation <= 1.0
    best = int(np.argmax(np.where(meets, points.rps, 0.0)) if meets.any() else np.argmin(violation))
    return Capacity(
        requests_per_s=float(points.rps[best]),
        batch=int(points.batch[best]),
        ttft_s=None if points.ttft_s is None else float(points.ttft_s[best]),
        itl_s=None if points.itl_s is None else float(points.itl_s[best]),
        meets_sla=bool(meets[best]),
    )


def _batches(most: float) -> Array:
    """Every size up to 128, else 128 sizes from 1 to `most`."""
    whole = int(most)
    if whole <= CANDIDATES:
        return np.arange(1.0, whole + 1.0)
    return 1.0 + np.floor(np.arange(CANDIDATES) * (whole - 1.0) / (CANDIDATES - 1))


def _chunked(line: Line, tokens: Array, chunk: int, requests: Array, kv: Array) -> Array:
    """Seconds to prefill `tokens` in chunks of `chunk`, each beside the given decode load; shape (n,)."""
    full, tail = np.divmod(tokens, float(chunk))
    last = np.where(tail > 0, line.at_each(tail, requests, kv), 0.0)
    time: Array = full * line.at_each(np.full_like(tokens, chunk), requests, kv) + last
    return time


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
