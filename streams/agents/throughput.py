"""The throughput loop: from the forecast to a floor for every role, on its own interval."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.models.perf.capacity import Capacity, LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits
from headrace.models.scaling.step import limit_step
from headrace.models.scaling.throughput import replicas_for, throughput_verdicts
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import PREFILL, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.prediction import Prediction
from headrace.schemas.reasons import Reason
from headrace.streams.agents.view import RoleView


@dataclass(slots=True)
class ThroughputLoop:
    """Floors outlive a failed forecast, but not for ever: a stale one would hold replicas that nobody needs."""

    config: PlannerConfig
    floors: dict[Role, tuple[int, float]] = field(default_factory=dict)  # replicas, expires_at

    def run(
        self,
        prediction: Prediction | None,
        views: Mapping[Role, RoleView],
        models: Mapping[Role, EngineModel],
        now: float,
    ) -> dict[Role, Verdict]:
        """Size every role for the prediction; on success set the floors anew."""
        if prediction is None:
            return {role: Verdict.hold(Reason.NO_TRAFFIC_DATA) for role in views}
        rate = prediction.requests_per_s or 0.0
        found = {role: self._capacity(view, models[role], prediction, view.limits) for role, view in views.items()}
        minimum = {role: self.config.min_endpoint_of(role) for role in views}
        verdicts = throughput_verdicts(rate, found, minimum)
        for role, verdict in verdicts.items():
            current, wanted = views[role].current, verdict.replicas
            if wanted is not None and current is not None and wanted < current:
                proven = self._proven(views[role], models[role], prediction, rate)
                verdicts[role] = replace(verdict, replicas=max(wanted, min(current, proven)))
        return self.settle(verdicts, views, now)

    def settle(self, sized: Mapping[Role, Verdict], views: Mapping[Role, RoleView], now: float) -> dict[Role, Verdict]:
        """Floors of what each role should have, one step from the current counts; a role that holds keeps its floor."""
        verdicts = dict(sized)
        ttl = self.config.floor_ttl_intervals * self.config.throughput_adjustment_interval_seconds
        for role, verdict in verdicts.items():
            current = views[role].current
            if verdict.replicas is None or current is None:
                continue
            wanted, least = verdict.replicas, self.config.min_endpoint_of(role)
            floor = max(least, limit_step(current, wanted, self.config.max_throughput_scaling_replicas))
            self.floors[role] = (floor, now + ttl)
            reason = verdict.reason if floor == wanted else Reason.MAX_STEP
            if self.config.load_loop:
                reason = Reason.SET_LOWER_BOUND
            verdicts[role] = Verdict(floor, reason, {**verdict.evidence, "wanted": wanted})
        return verdicts

    def floor(self, role: Role, now: float) -> int | None:
        """The floor in force, or None when there is none, it has expired, or the loop was switched off."""
        replicas, expires_at = self.floors.get(role, (0, 0.0))
        return replicas if now < expires_at and self.config.throughput_loop else None

    def _proven(self, view: RoleView, model: EngineModel, prediction: Prediction, rate: float) -> int:
        """How many replicas the rate needs if no engine holds more KV than one was ever seen to hold.

        Matters only where the KV capacity is unknown: the default is generous, and a guess must not scale down.
        """
        if view.kv_capacity is not None or view.role == PREFILL:
            return 0
        proven = self._capacity(view, model, prediction, view.held_limits)
        return view.current or 0 if proven is None else replicas_for(rate, proven.requests_per_s, 0)

    def _capacity(self, view: RoleView, model: EngineModel, p: Prediction, limits: EngineLimits) -> Capacity | None:
        """Of one replica: all its ranks serve."""
        if p.isl is None or p.osl is None:
            return None
        rank = capacity(
            model,
            view.role,
            limits,
            RequestShape(p.isl, p.osl, p.kv_hit_rate, accept_length(p.accept_length, view)),
            LatencyTargets(self.config.ttft_ms / 1000, self.config.itl_ms / 1000),
        )
        return None if rank is None else replace(rank, requests_per_s=rank.requests_per_s * view.ranks)

    def to_state(self) -> dict[str, Any]:
        return {"floors": {role: list(f) for role, f in self.floors.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        self.floors = {role: (int(n), float(at)) for role, (n, at) in state["floors"].items()}


def accept_length(seen: float | None, view: RoleView) -> float:
    """Tokens per decode step that speculation gives: within 1 and nextn + 1; 1 without speculation."""
    return 1.0 if view.nextn <= 0 or seen is None else min(max(seen, 1.0), view.nextn + 1.0)
