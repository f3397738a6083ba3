"""The requests per second of one engine within an SLA, as the reference searches for it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.models.reference.engine import MS, NS, Work
from headrace.models.reference.perf import Limits, PerfModel, computed_share
from headrace.schemas.base import DECODE, PREFILL

MOST_BATCHES = 128  # that are tried; of more every so many


@dataclass(frozen=True, slots=True)
class Demand:
    """One kind of request, tokens, and what it may take, ms. None: no such limit."""

    isl: float
    osl: float = 0.0
    ttft_ms: float | None = None
    itl_ms: float | None = None
    kv_hit_rate: float | None = None
    accept_length: float | None = None  # tokens per decode step


@dataclass(frozen=True, slots=True)
class Capacity:
    """Not `eligible`: nothing meets the SLA, and this is the point of the highest rate, so of the worst latency."""

    requests_per_s: float
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None  # of a whole request; None: this role sees a part of it
    eligible: bool


@dataclass(frozen=True, slots=True)
class _Point:
    """Nanoseconds."""

    batch: int
    ttft: int | None
    itl: int | None
    e2e: int | None
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class _Request:
    """What one request is to an engine."""

    computed: int  # prompt tokens that are not in the cache
    context: int  # tokens held while it decodes, in the mean
    osl: int
    accepted: float


def find_capacity(model: PerfModel, demand: Demand) -> Capacity | None:
    """The operating point of the highest rate, of those that meet the SLA if any does.

    None where a length is not positive, no batch fits, or some estimate is unknown. Raises ValueError for a length
    that is no number, as the reference does.
    """
    if model.limits is None or demand.isl <= 0 or (model.role != PREFILL and demand.osl <= 0):
        return None
    isl, osl = math.ceil(demand.isl), max(1, math.ceil(demand.osl))
    asked = 1.0 if demand.accept_length is None else demand.accept_length
    request = _Request(
        computed=max(1, math.ceil(isl * computed_share(demand.kv_hit_rate))),
        context=max(1, isl + osl // 2),
        osl=osl,
        accepted=asked if math.isfinite(asked) and asked > 1.0 and model.role != PREFILL else 1.0,
    )
    best, best_eligible = None, False
    for point in _points(model, model.limits, request):
        if point is None:
            return None
        eligible = _meets(point, demand)
        if best is None or (eligible, point.requests_per_s) > (best_eligible, best.requests_per_s):
            best, best_eligible = point, eligible
    if best is None:
        return None
    return Capacity(best.requests_per_s, _ms(best.ttft), _ms(best.itl), _ms(best.e2e), best_eligible)


def _points(model: PerfModel, limits: Limits, request: _Request) -> Iterator[_Point | None]:
    most = _most(model, limits, request)
    at = {PREFILL: _prefill, DECODE: _decode}.get(model.role, _aggregated)
    for batch in batches(most):
        found = at(model, limits, request, batch)
        if found is None or found.batch:
            yield found


def batches(most: int) -> list[int]:
    """Every one up to 128, else 128 of them, evenly."""
    if most <= MOST_BATCHES:
        return list(range(1, most + 1))
    return [1 + i * (most - 1) // (MOST_BATCHES - 1) for i in range(MOST_BATCHES)]


def _most(model: PerfModel, limits: Limits, request: _Request) -> int:
    tokens = limits.max_num_batched_tokens
    if model.role == PREFILL:
        return 1 if request.computed > tokens else min(limits.max_num_seqs, tokens // request.computed)
    fits = min(limits.max_num_seqs, limits.max_kv_tokens // request.context)
    if model.role == DECODE:
        return fits
    return 0 if tokens <= 1 else min(fits, max(1, tokens - 1))


_SKIPPED = _Point(0, None, None, None, 0.0)  # takes no time, or does not fit


def _prefill(model: PerfModel, limits: Limits, request: _Request, batch: int) -> _Point | None:
    ttft = model.prefill_ns(request.computed * batch, Work())
    if ttft is None:
        return None
    return _Point(batch, ttft, None, ttft, batch * NS / ttft) if ttft else _SKIPPED


def _decode(model: PerfModel, limits: Limits, request: _Request, batch: int) -> _Point | None:
    time = model.times.time_ns(Work(0, batch, batch * request.context))
    if time is None:
        return None
    itl = round(time / request.accepted)
    return _Point(batch, None, itl, None, batch * NS / (request.osl * itl)) if itl else _SKIPPED


def _aggregated(model: PerfModel, limits: Limits, request: _Request, batch: int) -> _Point | None:
    """To keep a batch decoding, every iteration prefills the prompts of those that end."""
    prefill = math.ceil(batch * request.accepted * request.computed / request.osl)
    room = limits.max_num_batched_tokens - batch
    if room <= 0 or prefill > room:
        return _SKIPPED
    beside = Work(0, batch, batch * request.context)
    time = model.times.time_ns(Work(prefill, batch, batch * request.context))
    ttft = model.prefill_ns(prefill + request.computed, beside)
    if time is None or ttft is None:
        return None
    itl = round(time / request.accepted)
    if not itl:
        return _SKIPPED
    return _Point(batch, ttft, itl, ttft + itl * (request.osl - 1), batch * NS / (request.osl * itl))


def _meets(point: _Point, demand: Demand) -> bool:
    """A limit on a latency that this role does not have is met by nothing."""
    for limit, seen in ((demand.ttft_ms, point.ttft), (demand.itl_ms, point.itl)):
        if limit is not None and (seen is None or seen > round(limit * MS)):
            return False
    return True


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / MS
