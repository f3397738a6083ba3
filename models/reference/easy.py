"""Targets without an SLA: static thresholds on queues and KV use, of every engine rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.models.reference.decision import Sub
from headrace.models.reference.load_sla import UNKNOWN, Judged
from headrace.models.reference.state import State
from headrace.schemas.base import AGG, PREFILL, Role
from headrace.schemas.fpm import Fpm
from headrace.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Up from `up` on, down to `down`; `open_up`: only above it, `open_down`: only below it."""

    up: float
    down: float
    open_up: bool = False
    open_down: bool = False

    def is_up(self, signal: float) -> bool:
        return signal > self.up or (signal == self.up and not self.open_up)

    def is_down(self, signal: float) -> bool:
        return signal < self.down or (signal == self.down and not self.open_down)


QUEUE = {"throughput": Thresholds(1.0, 0.1, open_down=True), "latency": Thresholds(0.1, 0.0)}  # of the context length
KV = {"throughput": Thresholds(1.0, 0.6, True, True), "latency": Thresholds(0.4, 0.1, True, True)}  # of the capacity


def judge(state: State, role: Role, engines: Sequence[Fpm], ready: int) -> Judged:
    if role == PREFILL:
        return Judged(_prefill(state, PREFILL, engines, ready))
    return Judged(_decode(state, role, engines, ready))


def _prefill(state: State, role: Role, engines: Sequence[Fpm], ready: int) -> Sub:
    s = state.settings
    queued = [float(fpm.queued_requests.sum_prefill_tokens) for fpm in engines]
    if s.optimization_target == "load":
        up, down = s.prefill_scale_up_queue_tokens, s.prefill_scale_down_queue_tokens
        thresholds = None if up is None or down is None else Thresholds(up, down)
        return _compare(queued, thresholds, ready, s.min_endpoint)
    context = state.engine(role).context_length or 0
    if context <= 0:
        return UNKNOWN
    return _compare([q / context for q in queued], QUEUE[s.optimization_target], ready, s.min_endpoint)


def _decode(state: State, role: Role, engines: Sequence[Fpm], ready: int) -> Sub:
    s, capacity = state.settings, state.engine(role).max_kv_tokens or 0
    if capacity <= 0:
        return UNKNOWN
    signals = []
    for fpm in engines:
        held = fpm.scheduled_requests.sum_decode_kv_tokens + fpm.queued_requests.sum_decode_kv_tokens
        if role == AGG:
            held += fpm.queued_requests.sum_prefill_tokens
        signals.append(held / capacity)
    thresholds = KV.get(s.optimization_target)
    up, down = s.decode_scale_up_kv_rate, s.decode_scale_down_kv_rate
    if thresholds is None and up is not None and down is not None:
        thresholds = Thresholds(up / 100, down / 100)
    return _compare(signals, thresholds, ready, s.min_endpoint)


def _compare(signals: Sequence[float], thresholds: Thresholds | None, ready: int, min_endpoint: int) -> Sub:
    if thresholds is None or ready <= 0 or not signals:
        return UNKNOWN
    if any(map(thresholds.is_up, signals)):
        return Sub(ready + 1, Reason.SCALE_UP)
    if ready > 1 and all(map(thresholds.is_down, signals)):
        return Sub(max(ready - 1, min_endpoint), Reason.SCALE_DOWN)
    return Sub(None, Reason.NO_CHANGE)
