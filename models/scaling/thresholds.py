"""The load loop without an SLA: static thresholds on queue and KV use, for targets throughput, latency and load.

Source: reference-semantics 6.7. Ours adds the consolidation check, so that a scale-down cannot push the survivors
to the threshold that scales up again (reference weak spot 11).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.models.perf.latency import EngineLoad
from headrace.models.scaling.step import survivors
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, PREFILL, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Band:
    """Up when any signal passes `up`, down when all are below `down`; `inclusive_*` says whether equality counts."""

    up: float
    down: float
    inclusive_up: bool
    inclusive_down: bool

    def wants_up(self, signals: Sequence[float]) -> bool:
        top = max(signals)
        return top >= self.up if self.inclusive_up else top > self.up

    def wants_down(self, signals: Sequence[float]) -> bool:
        top = max(signals)
        return top <= self.down if self.inclusive_down else top < self.down


PREFILL_BANDS = {"throughput": Band(1.0, 0.1, True, False), "latency": Band(0.1, 0.0, True, True)}
DECODE_BANDS = {"throughput": Band(1.0, 0.6, False, False), "latency": Band(0.4, 0.1, False, False)}


def band_of(config: PlannerConfig, role: Role) -> Band | None:
    """The thresholds of a role under the configured target; None when the target has none for it."""
    if config.optimization_target == "load":
        if role == PREFILL:
            up, down = config.prefill_scale_up_queue_tokens, config.prefill_scale_down_queue_tokens
            return None if up is None or down is None else Band(up, down, True, True)
        up, down = config.decode_scale_up_kv_rate, config.decode_scale_down_kv_rate
        return None if up is None or down is None else Band(up / 100, down / 100, True, True)
    return (PREFILL_BANDS if role == PREFILL else DECODE_BANDS).get(config.optimization_target)


def signals(role: Role, engines: Sequence[EngineLoad], *, per: float | None, tokens: bool) -> list[float] | None:
    """The signal of each engine rank: queued prompt tokens (per context length), or KV tokens per KV capacity.

    `per` is the context length or the KV capacity in tokens; `tokens` asks for prompt tokens as they are.
    None when `per` is needed and unknown.
    """
    if role == PREFILL and tokens:
        return [e.queued_prefill_tokens for e in engines]
    if per is None or per <= 0:
        return None
    if role == PREFILL:
        return [e.queued_prefill_tokens / per for e in engines]
    extra = 1.0 if role == AGG else 0.0
    return [
        (e.scheduled_decode_kv_tokens + e.queued_decode_kv_tokens + extra * e.queued_prefill_tokens) / per
        for e in engines
    ]


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers that are ready and starting, the least that must be, and how much of `up` survivors may use (0 to 1)."""

    workers: int
    starting: int = 0
    min_endpoint: int = 1
    sensitivity: float = 0.8


def threshold_verdict(band: Band | None, values: Sequence[float] | None, pool: Pool) -> Verdict:
    """One step up, one down, or hold.

    Survivors must stay below `sensitivity` of what scales up again: without that dead band, a few per cent of noise
    would move the count back and forth (wva#1427).
    """
    if band is None or not values or pool.workers == 0:
        return Verdict.hold(Reason.INSUFFICIENT_DATA)
    evidence = {"signal_max": max(values), "signal_min": min(values), "up_at": band.up, "down_at": band.down}
    if band.wants_up(values):
        return Verdict(pool.workers + 1, Reason.SCALE_UP, evidence)
    left = survivors(pool.workers, pool.starting, pool.min_endpoint)
    if left is None or not band.wants_down(values):
        return Verdict.hold(Reason.NO_CHANGE, **evidence)
    if max(values) * pool.workers / left >= band.up * pool.sensitivity:
        return Verdict.hold(Reason.SCALE_DOWN_REFUSED_CONSOLIDATION, **evidence)
    return Verdict(left, Reason.SCALE_DOWN, evidence)
