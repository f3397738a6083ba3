"""The queue-aware loop: fleets sized for what arrives, what has piled up, and how random it is; in steps of any size.

Up at once, to what the demand ahead and the backlog ask for. Down only when nothing has asked for more throughout a
window that covers twice the start-up time: what takes minutes to come back is not given up for seconds of quiet.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLoad, itl_s, ttft_s
from headrace.models.perf.line import Line
from headrace.models.perf.speed import line_for
from headrace.models.scaling.demand import Slice, lengths, rate, slice_of, spread
from headrace.models.scaling.queueing import (
    Demand,
    Sizing,
    Targets,
    agg_engines,
    crowded_engines,
    decode_engines,
    prefill_engines,
)
from headrace.models.scaling.step import limit_step
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.reasons import Outcome, Reason
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.agents.ledger import Ledger
from headrace.streams.agents.load import serving
from headrace.streams.agents.throughput import accept_length
from headrace.streams.agents.traffic import TrafficObserver
from headrace.streams.agents.view import RoleView

KEPT_S = 600.0  # of traffic
MOST_SLICES = 1200
RECENT_S = 30.0
MINUTE_S = 60.0
LENGTHS_S = 120.0
FIRST_STARTUP_S = 30.0  # until one was measured
DRAIN_S = 20.0  # in which a backlog shall be worked off
CROWDED_RUNS = 2  # in a row, before what is in the engines outvotes the demand


@dataclass(frozen=True, slots=True)
class Ahead:
    """The demand to plan for, and the numbers it comes from."""

    demand: Demand
    evidence: Mapping[str, float]


@dataclass(slots=True)
class QueueAwareLoop:
    """Remembers ten minutes of traffic, what was wanted lately, and how long a scale-up takes."""

    config: PlannerConfig
    slices: deque[Slice] = field(default_factory=deque)
    wants: dict[Role, list[tuple[float, int]]] = field(default_factory=dict)  # time, replicas
    crowded: dict[Role, list[int]] = field(default_factory=dict)
    startup_s: float = FIRST_STARTUP_S
    measured_id: int = -1  # decision whose start-up was taken in last

    def observe(self, window: TrafficWindow, now: float) -> None:
        """Take in a window that the traffic observer has taken. A clock ahead must not outshine what follows."""
        if not self.config.queue_aware:
            return
        found = slice_of(window)
        if found is not None and found.end > now - KEPT_S:
            believed = found.end <= now + self.config.max_clock_skew_seconds
            self.slices.append(found if believed else msgspec.structs.replace(found, end=now))
            while len(self.slices) > MOST_SLICES:
                self.slices.popleft()

    def run(
        self,
        views: Mapping[Role, RoleView],
        models: Mapping[Role, EngineModel],
        traffic: TrafficObserver,
        ledger: Ledger,
        now: float,
    ) -> dict[Role, Verdict]:
        """One verdict per role. Estimates are made even where nothing may act, so that the report shows them."""
        while self.slices and self.slices[0].end < now - KEPT_S:
            self.slices.popleft()
        self._measure_startup(ledger)
        in_progress = ledger.outstanding is not None
        verdicts = {}
        for role, view in views.items():
            ahead = self._ahead(traffic, view, now)
            verdict = self._role(view, models[role], ahead, now)
            gate = _gate(view, verdict, in_progress)
            verdicts[role] = verdict if gate is None else Verdict.hold(gate, **verdict.evidence)
        return verdicts

    def _measure_startup(self, ledger: Ledger) -> None:
        """From the issue of an applied scale-up to its ack: what a decision to grow takes to show."""
        d = ledger.newest
        if d is None or d.decision_id == self.measured_id or ledger.outcome is not Outcome.APPLIED:
            return
        self.measured_id = d.decision_id
        if ledger.settled_at is not None and any(n > d.previous.get(role, 0) for role, n in d.targets.items()):
            self.startup_s += 0.5 * (max(0.0, ledger.settled_at - d.issued_at) - self.startup_s)

    def _ahead(self, traffic: TrafficObserver, view: RoleView, now: float) -> Ahead | None:
        """Demand over the time that a new worker needs; None while it is unknown."""
        kept = list(self.slices)
        recent, minute = rate(kept, now - RECENT_S), rate(kept, now - MINUTE_S)
        typical = lengths([s for s in kept if s.end > now - LENGTHS_S]) or lengths(kept)
        if recent is None or minute is None or typical is None:
            return None
        before = rate(kept, now - 2 * MINUTE_S, now - MINUTE_S)
        rising = 0.0 if before is None else max(0.0, minute - before) / MINUTE_S
        planned = max(recent, minute + rising * (self.startup_s + self.config.load_adjustment_interval_seconds))
        cv2 = spread(kept)
        demand = Demand(
            requests_per_s=planned,
            isl=typical[0],
            osl=typical[1],
            isl_cv2=1.0 if cv2 is None else cv2,
            kv_hit_rate=traffic.kv_hit_rate,
            accept_length=accept_length(traffic.accept_length, view),
        )
        numbers = {"demand_rps": recent, "planned_rps": planned, "isl": typical[0], "osl": typical[1]}
        return Ahead(demand, numbers | {"isl_cv2": demand.isl_cv2, "startup_s": self.startup_s})

    def _role(self, view: RoleView, model: EngineModel, ahead: Ahead | None, now: float) -> Verdict:
        current = view.current
        evidence = self._latencies(view, model, ahead)
        if view.inventory is None or current is None:
            return Verdict.hold(Reason.NO_INVENTORY, **evidence)
        if ahead is None:
            return Verdict.hold(Reason.NO_TRAFFIC_DATA, **evidence)
        line = line_for(model, view.role, prefill=view.role != DECODE, decode=view.role != PREFILL)
        if line is None:
            return Verdict.hold(Reason.MODEL_NOT_READY, **evidence)
        found = self._size(view, line, ahead.demand)
        wanted = max(self.config.min_endpoint_of(view.role), -(-found.engines // view.ranks))
        evidence |= {**ahead.evidence, "utilisation": found.utilisation, "sla_can_be_met": float(found.met)}
        return self._step(view.role, current, wanted, now, evidence | {"wanted": wanted})

    def _size(self, view: RoleView, line: Line, demand: Demand) -> Sizing:
        targets = Targets(
            self.config.ttft_ms / 1000,
            self.config.itl_ms / 1000,
            self.config.queue_late_share,
            self.config.queue_batch_deviations,
        )
        engines = serving(view)
        backlog = sum(e.queued_prefill_tokens for e in engines) / DRAIN_S / max(1.0, demand.isl)
        if view.role == PREFILL:
            return prefill_engines(demand, line, targets, backlog)
        if view.role == AGG:
            found = agg_engines(demand, line, view.limits, targets, backlog)
        else:
            found = decode_engines(demand, line, view.limits, targets)
        return self._crowded(view, line, engines, found, demand)

    def _crowded(self, view: RoleView, line: Line, engines: list[EngineLoad], found: Sizing, demand: Demand) -> Sizing:
        """One engine more than the demand explains, while the batches that run are too large for the target."""
        requests = sum(e.scheduled_decode_requests + e.queued_decode_requests for e in engines)
        kv = sum(e.scheduled_decode_kv_tokens + e.queued_decode_kv_tokens for e in engines)
        target_s = self.config.itl_ms / 1000 * demand.accept_length
        runs = self.crowded.setdefault(view.role, [])
        runs.append(crowded_engines(requests, kv, line, view.limits, target_s))
        del runs[:-CROWDED_RUNS]
        lasting = min(runs) if len(runs) == CROWDED_RUNS else 0
        return replace(found, engines=found.engines + 1) if lasting > found.engines else found

    def _step(self, role: Role, current: int, wanted: int, now: float, evidence: Mapping[str, float]) -> Verdict:
        """From what is wanted now and was wanted lately to one step."""
        window_s = max(self.config.scale_down_window_seconds, 2.0 * self.startup_s)
        wants = self.wants.setdefault(role, [])
        wants.append((now, wanted))
        while len(wants) > 1 and wants[1][0] <= now - window_s:
            del wants[0]
        if wanted > current:
            step = limit_step(current, wanted, self.config.max_throughput_scaling_replicas)
            return Verdict(step, Reason.SCALE_UP if step == wanted else Reason.MAX_STEP, evidence)
        if wanted == current:
            return Verdict.hold(Reason.NO_CHANGE, **evidence)
        highest = max(n for _, n in wants)
        if wants[0][0] > now - window_s or highest >= current:
            return Verdict.hold(Reason.STABILISING, **evidence)
        step = limit_step(current, highest, self.config.max_throughput_scaling_replicas)
        return Verdict(step, Reason.SCALE_DOWN, evidence)

    def _latencies(self, view: RoleView, model: EngineModel, ahead: Ahead | None) -> dict[str, float]:
        """The next request's latencies on the worst engine, for the report."""
        hit, accept = (None, 1.0) if ahead is None else (ahead.demand.kv_hit_rate, ahead.demand.accept_length)
        found = {
            "ttft_ms": [ttft_s(model, view.role, e, view.limits, kv_hit_rate=hit) for e in view.engines.values()],
            "itl_ms": [itl_s(model, view.role, e, accept_length=accept) for e in view.engines.values()],
        }
        known = {name: [v for v in values if v is not None] for name, values in found.items()}
        return {name: 1000 * max(values) for name, values in known.items() if values}

    def to_state(self) -> dict[str, Any]:
        return {
            "slices": msgspec.to_builtins(list(self.slices)),
            "wants": {role: [list(want) for want in wants] for role, wants in self.wants.items()},
            "crowded": self.crowded,
            "startup_s": self.startup_s,
            "measured_id": self.measured_id,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.slices = deque(msgspec.convert(state["slices"], list[Slice]))
        self.wants = {role: [(float(at), int(n)) for at, n in wants] for role, wants in state["wants"].items()}
        self.crowded = {role: list(runs) for role, runs in state["crowded"].items()}
        self.startup_s, self.measured_id = float(state["startup_s"]), int(state["measured_id"])


def _gate(view: RoleView, verdict: Verdict, in_progress: bool) -> Reason | None:
    """Why this verdict may not act now, or None. A scale-down needs the word of every engine."""
    if verdict.replicas is None or view.inventory is None:
        return None
    if in_progress or view.settling:
        return Reason.SCALING_IN_PROGRESS
    if verdict.reason is not Reason.SCALE_DOWN:
        return None
    if not view.engines:
        return Reason.NO_FPM_DATA
    return None if view.complete else Reason.WORKER_COUNT_MISMATCH
