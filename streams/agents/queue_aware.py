"""The queue-aware loop: fleets sized for what arrives, what has piled up, and how random it is; in steps of any size.

Up at once, to what the demand ahead and the backlog ask for. Down only when nothing has asked for more throughout a
window that covers twice the start-up time: what takes minutes to come back is not given up for seconds of quiet.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLoad, itl_s, ttft_s
from headrace.models.perf.line import FLOOR_S, Line
from headrace.models.perf.speed import line_for
from headrace.models.scaling.queueing import (
    AggLines,
    Demand,
    Sizing,
    Targets,
    agg_engines,
    agg_service,
    crowded_engines,
    decode_engines,
    prefill_engines,
    prefill_service,
)
from headrace.models.scaling.step import limit_step
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.prediction import Prediction
from headrace.schemas.reasons import Reason
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.agents.ahead import Ahead, DemandAhead, for_role
from headrace.streams.agents.held import Held
from headrace.streams.agents.ledger import Ledger
from headrace.streams.agents.load import serving
from headrace.streams.agents.traffic import TrafficObserver
from headrace.streams.agents.view import RoleView

DRAIN_S = 20.0  # in which a backlog shall be worked off
CROWDED_RUNS = 2  # in a row, before what is in the engines outvotes the demand


@dataclass(frozen=True, slots=True)
class Scene:
    """What a run looks at. `startup_s` is how long a new worker takes to serve; `fallback` is the load loop's word, for
    while the traffic is unknown."""

    views: Mapping[Role, RoleView]
    models: Mapping[Role, EngineModel]
    traffic: TrafficObserver
    ledger: Ledger
    startup_s: float
    prediction: Prediction | None = None
    fallback: Mapping[Role, Verdict] = field(default_factory=dict)


@dataclass(slots=True)
class QueueAwareLoop:
    """Remembers recent traffic and what was wanted lately."""

    config: PlannerConfig
    ahead: DemandAhead = field(init=False)
    wants: dict[Role, list[tuple[float, int]]] = field(default_factory=dict)  # time, replicas
    crowded: dict[Role, list[int]] = field(default_factory=dict)
    stuck: dict[Role, list[int]] = field(default_factory=dict)  # engines whose caches would hold all that decodes
    held: dict[Role, Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ahead = DemandAhead(self.config)

    def configure(self, config: PlannerConfig) -> None:
        self.config = config
        self.ahead.configure(config)

    def observe(self, window: TrafficWindow, now: float) -> None:
        if self.config.queue_aware:
            self.ahead.observe(window, now)

    def blind(self, prediction: Prediction | None, startup_s: float, now: float) -> bool:
        """Is the demand unknown?"""
        self.ahead.forget(now)
        return self.ahead.look(prediction, startup_s, now) is None

    def run(self, scene: Scene, now: float) -> dict[Role, Verdict]:
        """One verdict per role. Estimates are made even where nothing may act, so that the report shows them."""
        self.ahead.forget(now)
        in_progress = scene.ledger.outstanding is not None
        ahead = self.ahead.look(scene.prediction, scene.startup_s, now)
        verdicts = {}
        for role, view in scene.views.items():
            verdict = self._role(scene, role, ahead, now)
            gate = self._gate(view, verdict, in_progress)
            verdicts[role] = verdict if gate is None else Verdict.hold(gate, **verdict.evidence)
        return verdicts

    def _role(self, scene: Scene, role: Role, ahead: Ahead | None, now: float) -> Verdict:
        view, model = scene.views[role], scene.models[role]
        current = view.current
        held = self.held.setdefault(role, Held())
        if view.inventory is not None:
            held.see(serving(view), now)
        demand = None if ahead is None else for_role(ahead, view, scene.traffic, held.mean)
        evidence = self._latencies(view, model, demand)
        if view.inventory is None or current is None:
            return Verdict.hold(Reason.NO_INVENTORY, **evidence)
        if ahead is None or demand is None:
            return self._without_traffic(scene, role, now)
        line = line_for(model, role, prefill=role != DECODE, decode=role != PREFILL)
        if line is None:
            return Verdict.hold(Reason.MODEL_NOT_READY, **evidence)
        found = self._size(scene, role, line, demand)
        wanted = max(self.config.min_endpoint_of(role), -(-found.engines // view.ranks))
        evidence |= {**ahead.evidence, "utilisation": found.utilisation, "sla_can_be_met": float(found.met)}
        evidence["out_of_reach"] = found.out_of_reach
        return self._step(scene, role, wanted, now, evidence | {"wanted": wanted, "startup_s": scene.startup_s})

    def _without_traffic(self, scene: Scene, role: Role, now: float) -> Verdict:
        """While nobody measures traffic, engines' queues still tell who needs one replica more.

        One replica less they may say only where no throughput loop asks for traffic: there a missing measurement is an
        outage, and an outage takes nothing away.
        """
        spoken, current = scene.fallback.get(role), scene.views[role].current
        assert current is not None
        if spoken is None or spoken.replicas is None:
            reason = Reason.NO_TRAFFIC_DATA if spoken is None or spoken.reason is Reason.NO_CHANGE else spoken.reason
            return Verdict.hold(reason, **({} if spoken is None else spoken.evidence))
        if spoken.replicas <= current and self.config.throughput_loop:
            return Verdict.hold(Reason.NO_TRAFFIC_DATA, **spoken.evidence)
        return self._step(scene, role, spoken.replicas, now, spoken.evidence)

    def _size(self, scene: Scene, role: Role, line: Line, demand: Demand) -> Sizing:
        view = scene.views[role]
        targets = Targets(
            self.config.ttft_ms / 1000,
            self.config.itl_ms / 1000,
            self.config.queue_late_share,
        )
        engines = serving(view) if self.config.load_loop else []
        if role == PREFILL:
            service = prefill_service(demand, line, view.limits)
            backlog = _backlog(service.mean_s, demand, engines, scene.startup_s)
            return prefill_engines(demand, service, targets, backlog)
        if role == AGG:
            lines = AggLines(line_for(scene.models[AGG], AGG, prefill=False, decode=True) or line, line)
            backlog = _backlog(agg_service(demand, lines, view.limits).mean_s, demand, engines, scene.startup_s)
            found = agg_engines(demand, lines, view.limits, targets, backlog)
        else:
            found = decode_engines(demand, line, view.limits, targets)
        return self._crowded(view, line, engines, found, demand)

    def _crowded(self, view: RoleView, line: Line, engines: list[EngineLoad], found: Sizing, demand: Demand) -> Sizing:
        """One engine more than the demand explains, while the batches that run are too large for the target.

        What does not fit into the caches is no crowd but a backlog, which in the end stops the prefill engines too:
        there are to be engines for all of it.
        """
        requests = sum(e.scheduled_decode_requests + e.queued_decode_requests for e in engines)
        kv = sum(e.scheduled_decode_kv_tokens + e.queued_decode_kv_tokens for e in engines)
        target_s = self.config.itl_ms / 1000 * demand.accept_length
        runs, stuck = self.crowded.setdefault(view.role, []), self.stuck.setdefault(view.role, [])
        runs.append(crowded_engines(requests, kv, line, view.limits, target_s))
        stuck.append(math.ceil(kv / max(1, view.limits.max_kv_tokens)) if kv > 0 else 0)
        del runs[:-CROWDED_RUNS], stuck[:-CROWDED_RUNS]
        lasting, held = (min(seen) if len(seen) == CROWDED_RUNS else 0 for seen in (runs, stuck))
        more = found.engines + 1 if lasting > found.engines else found.engines
        return replace(found, engines=max(more, held))

    def _step(self, scene: Scene, role: Role, wanted: int, now: float, evidence: Mapping[str, float]) -> Verdict:
        """From what is wanted now and was wanted lately to one step."""
        current = scene.views[role].current
        assert current is not None  # else nothing is wanted
        window_s = max(self.config.scale_down_window_seconds, 2.0 * scene.startup_s)
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

    def _gate(self, view: RoleView, verdict: Verdict, in_progress: bool) -> Reason | None:
        """Why this verdict may not act now, or None. Where engines have a say, a scale-down needs the word of all."""
        if verdict.replicas is None or view.inventory is None:
            return None
        if in_progress or view.settling:
            return Reason.SCALING_IN_PROGRESS
        if verdict.reason is not Reason.SCALE_DOWN or not self.config.load_loop:
            return None
        if not view.engines:
            return Reason.NO_FPM_DATA
        return None if view.complete else Reason.WORKER_COUNT_MISMATCH

    def _latencies(self, view: RoleView, model: EngineModel, demand: Demand | None) -> dict[str, float]:
        """The next request's latencies on the worst engine, for the report."""
        hit, accept = (None, 1.0) if demand is None else (demand.kv_hit_rate, demand.accept_length)
        found = {
            "ttft_ms": [ttft_s(model, view.role, e, view.limits, kv_hit_rate=hit) for e in view.engines.values()],
            "itl_ms": [itl_s(model, view.role, e, accept_length=accept) for e in view.engines.values()],
        }
        known = {name: [v for v in values if v is not None] for name, values in found.items()}
        return {name: 1000 * max(values) for name, values in known.items() if values}

    def to_state(self) -> dict[str, Any]:
        return {
            "slices": self.ahead.to_state(),
            "wants": {role: [list(want) for want in wants] for role, wants in self.wants.items()},
            "crowded": self.crowded,
            "stuck": self.stuck,
            "held": {role: [h.requests, h.tokens, h.at] for role, h in self.held.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.ahead.load_state(state["slices"])
        self.wants = {role: [(float(at), int(n)) for at, n in wants] for role, wants in state["wants"].items()}
        self.crowded = {role: list(runs) for role, runs in state["crowded"].items()}
        self.stuck = {role: list(runs) for role, runs in state.get("stuck", {}).items()}  # not in older snapshots
        held = state.get("held", {})
        self.held = {role: Held(*(float(x) for x in saved)) for role, saved in held.items()}


def _backlog(prompt_s: float, demand: Demand, engines: list[EngineLoad], startup_s: float) -> float:
    """Requests/s that work off, within `DRAIN_S`, what will have piled up when new workers come.

    What runs now goes on serving until then: it may make the pile smaller, or the arrivals make it larger.
    """
    queued = sum(e.queued_prefill_tokens for e in engines) / max(1.0, demand.isl)
    if not queued:
        return 0.0
    grows = demand.requests_per_s - len(engines) / max(FLOOR_S, prompt_s)
    return max(0.0, queued + grows * startup_s) / DRAIN_S
