"""The load loop against the SLA: one replica up or down, from what the engines have in front of them now.

Up when every engine's estimate is above the target; down when the survivors would still be safely below it.
Source: reference-semantics 6.3 and 6.4; dynamo#9294 for the consolidation check (without it, 2 -> 1 -> 2 for ever).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits, EngineLoad, itl_s, ttft_s
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class LoadInputs:
    """One role as the load loop sees it.

    `engines` has one load per engine rank that speaks; `workers` counts ready replicas; SLAs are in seconds;
    `sensitivity` is 0 (never down) to 1; `kv_hit_rate` and `accept_length` are the last valid ones or None.
    """

    role: Role
    workers: int
    engines: Sequence[EngineLoad]
    model: EngineModel
    limits: EngineLimits
    ttft_sla_s: float
    itl_sla_s: float
    sensitivity: float
    min_endpoint: int
    kv_hit_rate: float | None = None
    accept_length: float = 1.0

    @property
    def crowding(self) -> float:
        """How the load of a survivor grows when one of `workers` leaves: N / (N - 1)."""
        return self.workers / (self.workers - 1) if self.workers > 1 else 1.0


@dataclass(frozen=True, slots=True)
class _Down:
    """May a worker leave? `refused` tells a broken safety check from a missing estimate."""

    safe: bool
    refused: bool = False


def load_verdict(x: LoadInputs) -> Verdict:
    """One step up, one down, or hold, with the largest estimates as evidence."""
    if x.workers == 0 or not x.engines:
        return Verdict.hold(Reason.INSUFFICIENT_DATA)
    if x.role == PREFILL:
        return _step(x, [_ttft(x, e) for e in x.engines], x.ttft_sla_s, "ttft_ms", lambda: _prefill_down(x))
    if x.role == DECODE:
        return _step(x, [_itl(x, e) for e in x.engines], x.itl_sla_s, "itl_ms", lambda: _decode_down(x))
    return _aggregated(x)


def _step(x: LoadInputs, estimates: list[float | None], sla_s: float, name: str, down: Callable[[], _Down]) -> Verdict:
    known = [e for e in estimates if e is not None]
    if len(known) < len(estimates):
        return Verdict.hold(Reason.INSUFFICIENT_DATA)
    evidence = {name: 1000 * max(known), f"min_{name}": 1000 * min(known)}
    if min(known) > sla_s:
        if name == "ttft_ms" and not _more_prefill_workers_help(x, known):
            return Verdict.hold(Reason.SCALE_UP_CANNOT_HELP, **evidence)
        return Verdict(x.workers + 1, Reason.SCALE_UP, evidence)
    if x.workers <= max(1, x.min_endpoint):
        return Verdict.hold(Reason.NO_CHANGE, **evidence)
    check = down()
    if check.safe:
        return Verdict(x.workers - 1, Reason.SCALE_DOWN, evidence)
    return Verdict.hold(Reason.SCALE_DOWN_REFUSED_CONSOLIDATION if check.refused else Reason.NO_CHANGE, **evidence)


def _ttft(x: LoadInputs, e: EngineLoad, **scale: float) -> float | None:
    return ttft_s(x.model, x.role, e, x.limits, kv_hit_rate=x.kv_hit_rate, **scale)  # type: ignore[arg-type]


def _itl(x: LoadInputs, e: EngineLoad, decode_scale: float = 1.0, prefill_as_kv: bool = False) -> float | None:
    return itl_s(
        x.model,
        x.role,
        e,
        decode_scale=decode_scale,
        include_queued_prefill_as_kv=prefill_as_kv,
        accept_length=x.accept_length,
    )


def _more_prefill_workers_help(x: LoadInputs, estimates: Sequence[float]) -> bool:
    """Where a lone request already misses the target, only waiting can be bought down, never a request's own compute.

    Then the wait alone must exceed the target before another worker is asked for (else the fleet grows to its budget
    on idle engines: reference weak spot 5; dynamo#8861).
    """
    own = [_ttft(x, e, queue_scale=0.0) for e in x.engines]
    if any(o is None or o <= x.ttft_sla_s for o in own):
        return True
    return all(est - (o or 0.0) > x.ttft_sla_s for est, o in zip(estimates, own, strict=True))


def _prefill_down(x: LoadInputs) -> _Down:
    """The wait of survivors, N/(N-1) times today's, must fit into the SLA's slack beside a request's own compute."""
    for e in x.engines:
        own, post = _ttft(x, e, queue_scale=0.0), _ttft(x, e, queue_scale=x.crowding)
        if own is None or post is None:
            return _Down(safe=False)
        slack = (x.ttft_sla_s - own) * x.sensitivity
        if slack <= 0 or post - own >= slack:
            return _Down(safe=False, refused=True)
    return _Down(safe=True)


def _decode_down(x: LoadInputs, prefill_as_kv: bool = False) -> _Down:
    """Survivors must hold the KV of the leaver, and stay below `sensitivity` of the ITL target."""
    for e in x.engines:
        kv = e.scheduled_decode_kv_tokens + e.queued_decode_kv_tokens + (e.queued_prefill_tokens if prefill_as_kv else 0.0)
        if int(kv * x.crowding) >= x.limits.max_kv_tokens:
            return _Down(safe=False, refused=True)
        post = _itl(x, e, decode_scale=x.crowding, prefill_as_kv=prefill_as_kv)
        if post is None:
            return _Down(safe=False)
        if post >= x.itl_sla_s * x.sensitivity:
            return _Down(safe=False, refused=True)
    return _Down(safe=True)


def _aggregated_prefill_down(x: LoadInputs) -> _Down:
    for e in x.engines:
        scale = {"decode_scale": x.crowding, "include_queued_decode": True}
        own, post = _ttft(x, e, queue_scale=0.0, **scale), _ttft(x, e, queue_scale=x.crowding, **scale)
        if own is None or post is None:
            return _Down(safe=False)
        slack = (x.ttft_sla_s - own) * x.sensitivity
        if slack <= 0 or post - own >= slack:
            return _Down(safe=False, refused=True)
    return _Down(safe=True)


def _aggregated(x: LoadInputs) -> Verdict:
    """Up when either half asks for it, down only when both agree."""
    assert x.role == AGG
    prefill = _step(x, [_ttft(x, e) for e in x.engines], x.ttft_sla_s, "ttft_ms", lambda: _aggregated_prefill_down(x))
    decode = _step(x, [_itl(x, e) for e in x.engines], x.itl_sla_s, "itl_ms", lambda: _decode_down(x, prefill_as_kv=True))
    evidence = {**prefill.evidence, **decode.evidence}
    halves = (prefill, decode)
    for half in halves:
        if half.reason is Reason.SCALE_UP:
            return Verdict(half.replicas, Reason.SCALE_UP, evidence)
    if all(h.reason is Reason.SCALE_DOWN for h in halves):
        return Verdict(x.workers - 1, Reason.SCALE_DOWN, evidence)
    for reason in (
        Reason.SCALE_UP_CANNOT_HELP,
        Reason.SCALE_DOWN_REFUSED_CONSOLIDATION,
        Reason.INSUFFICIENT_DATA,
        Reason.NO_CHANGE,
    ):
        if any(h.reason is reason for h in halves):
            return Verdict.hold(reason, **evidence)
    return Verdict.hold(Reason.NO_CHANGE, **evidence)
