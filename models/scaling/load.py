"""The load loop against the SLA: one replica up or down, from what the engines have in front of them now.

Up when every engine's estimate is above the target; down when the survivors would still be safely below it.
Source: reference-semantics 6.3 and 6.4; dynamo#9294 for the consolidation check (without it, 2 -> 1 -> 2 for ever).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits, EngineLoad, acceptance, itl_s, ttft_s
from headrace.models.perf.speed import line_for
from headrace.models.scaling.step import survivors
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.reasons import Reason

IDLE = EngineLoad()


@dataclass(frozen=True, slots=True)
class LoadInputs:
    """One role as the load loop sees it.

    `engines` has one load per engine rank that speaks; `workers` counts ready replicas, `starting` those that are on
    their way; SLAs are in seconds; `sensitivity` is 0 (never down) to 1; `kv_hit_rate` and `accept_length` are the last
    valid ones or None.
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
    starting: int = 0

    @property
    def survivors(self) -> int | None:
        """Workers after one step down, None when there is none."""
        return survivors(self.workers, self.starting, self.min_endpoint)

    @property
    def crowding(self) -> float:
        """How the load of each survivor grows: N / (N - 1) when one of N leaves."""
        return self.workers / (self.survivors or self.workers)


class _Down(Enum):
    """May a worker leave? REFUSED is a broken safety check, UNKNOWN a missing estimate."""

    SAFE = "safe"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Latency:
    """One latency and its target: what an engine's next request would get.

    `alone` is what that request would get on an engine without load, which no further worker can lower; `down` judges
    an engine that has taken its share of a leaver's load.
    """

    name: str  # ttft_ms, itl_ms
    sla_s: float
    of: Callable[[EngineLoad], float | None]
    alone: Callable[[], float | None]
    down: Callable[[EngineLoad], _Down]


def load_verdict(x: LoadInputs) -> Verdict:
    """One step up, one down, or hold, with the largest and smallest estimates as evidence."""
    if x.workers == 0 or not x.engines:
        return Verdict.hold(Reason.INSUFFICIENT_DATA)
    if x.role == PREFILL:
        return _step(x, _ttft(x, _prefill_down))
    if x.role == DECODE:
        return _step(x, _itl(x, _decode_down))
    return _aggregated(x)


def _step(x: LoadInputs, latency: _Latency) -> Verdict:
    estimates = [latency.of(e) for e in x.engines]
    known = [e for e in estimates if e is not None]
    if len(known) < len(estimates):
        return Verdict.hold(Reason.INSUFFICIENT_DATA)
    evidence = {latency.name: 1000 * max(known), f"min_{latency.name}": 1000 * min(known)}
    if min(known) > latency.sla_s:
        if not _another_worker_helps(x, latency, min(known)):
            return Verdict.hold(Reason.SCALE_UP_CANNOT_HELP, **evidence)
        return Verdict(x.workers + 1, Reason.SCALE_UP, evidence)
    left = x.survivors
    if left is None:
        return Verdict.hold(Reason.NO_CHANGE, **evidence)
    for engine in x.engines:
        match latency.down(engine):
            case _Down.REFUSED:
                return Verdict.hold(Reason.SCALE_DOWN_REFUSED_CONSOLIDATION, **evidence)
            case _Down.UNKNOWN:
                return Verdict.hold(Reason.NO_CHANGE, **evidence)
    return Verdict(left, Reason.SCALE_DOWN, evidence)


def _another_worker_helps(x: LoadInputs, latency: _Latency, least: float) -> bool:
    """Only what load adds can be bought down: never a request's own time, and nothing where an engine has no load.

    A lone request that already misses the target makes it infeasible; then the load's part alone must exceed the target
    before another worker is asked for, or the fleet grows to its budget on idle engines (reference weak spot 5;
    dynamo#8861).
    """
    if any(e == IDLE for e in x.engines):
        return False
    alone = latency.alone()
    return alone is None or alone <= latency.sla_s or least - alone > latency.sla_s


def _ttft(x: LoadInputs, down: Callable[[LoadInputs, EngineLoad], _Down]) -> _Latency:
    return _Latency(
        "ttft_ms",
        x.ttft_sla_s,
        of=lambda e: ttft_s(x.model, x.role, e, x.limits, kv_hit_rate=x.kv_hit_rate),
        alone=lambda: ttft_s(x.model, x.role, IDLE, x.limits, kv_hit_rate=x.kv_hit_rate),
        down=lambda e: down(x, e),
    )


def _itl(x: LoadInputs, down: Callable[[LoadInputs, EngineLoad], _Down]) -> _Latency:
    return _Latency(
        "itl_ms",
        x.itl_sla_s,
        of=lambda e: itl_s(x.model, x.role, e, accept_length=x.accept_length),
        alone=lambda: _lone_itl(x),
        down=lambda e: down(x, e),
    )


def _lone_itl(x: LoadInputs) -> float | None:
    """Seconds between the tokens of a typical request that has an engine for itself."""
    length = x.model.mean_decode_length
    line = line_for(x.model, x.role, prefill=False, decode=True)
    if length is None or line is None:
        return None
    return line.at(decode_requests=1.0, decode_kv_tokens=length) / acceptance(x.accept_length)


def _prefill_down(x: LoadInputs, e: EngineLoad) -> _Down:
    return _wait_fits(
        x, lambda queue: ttft_s(x.model, x.role, e.scaled(queue=queue), x.limits, kv_hit_rate=x.kv_hit_rate)
    )


def _aggregated_prefill_down(x: LoadInputs, e: EngineLoad) -> _Down:
    crowded = e.admitted().scaled(decode=x.crowding)
    return _prefill_down(x, crowded)


def _wait_fits(x: LoadInputs, ttft: Callable[[float], float | None]) -> _Down:
    """The wait of survivors, N/(N-1) times today's, must fit into the SLA's slack beside a request's own compute.

    `ttft` takes the scale of the queue.
    """
    own, crowded = ttft(0.0), ttft(x.crowding)
    if own is None or crowded is None:
        return _Down.UNKNOWN
    slack = (x.ttft_sla_s - own) * x.sensitivity
    return _Down.REFUSED if crowded - own >= slack else _Down.SAFE  # without slack, any wait is too long


def _decode_down(x: LoadInputs, e: EngineLoad, prefill_as_kv: bool = False) -> _Down:
    """Survivors must hold the KV of the leaver, and stay below `sensitivity` of the ITL target."""
    kv = e.scheduled_decode_kv_tokens + e.queued_decode_kv_tokens + (e.queued_prefill_tokens if prefill_as_kv else 0.0)
    if int(kv * x.crowding) >= x.limits.max_kv_tokens:
        return _Down.REFUSED
    survivors_load = (e.prefilled() if prefill_as_kv else e).admitted().scaled(decode=x.crowding)
    crowded = itl_s(x.model, x.role, survivors_load, accept_length=x.accept_length)
    if crowded is None:
        return _Down.UNKNOWN
    return _Down.REFUSED if crowded >= x.itl_sla_s * x.sensitivity else _Down.SAFE


def _aggregated(x: LoadInputs) -> Verdict:
    """Up when either half asks for it, down only when both agree; what is unknown in one half stops the step down."""
    assert x.role == AGG
    ttft = _step(x, _ttft(x, _aggregated_prefill_down))
    itl = _step(x, _itl(x, lambda x, e: _decode_down(x, e, prefill_as_kv=True)))
    evidence = {**ttft.evidence, **itl.evidence}
    reasons = (ttft.reason, itl.reason)
    if Reason.SCALE_UP in reasons:
        return Verdict(x.workers + 1, Reason.SCALE_UP, evidence)
    if reasons == (Reason.SCALE_DOWN, Reason.SCALE_DOWN):
        return Verdict(x.survivors, Reason.SCALE_DOWN, evidence)
    return Verdict.hold(next(reason for reason in _MOST_TELLING if reason in reasons), **evidence)


_MOST_TELLING = (
    Reason.SCALE_UP_CANNOT_HELP,
    Reason.SCALE_DOWN_REFUSED_CONSOLIDATION,
    Reason.INSUFFICIENT_DATA,
    Reason.NO_CHANGE,
)
