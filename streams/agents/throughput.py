"""The throughput loop: from the forecast to a floor for every role, on its own interval."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.models.perf.capacity import Capacity, capacity
from headrace.models.perf.engine import EngineModel
from headrace.models.scaling.throughput import limit_step, throughput_verdicts
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.prediction import Prediction
from headrace.schemas.reasons import Reason
from headrace.streams.agents.view import RoleView


@dataclass(slots=True)
class ThroughputLoop:
    """Floors outlive a failed forecast, but not for ever: a stale one would hold replicas that nobody needs."""

    config: PlannerConfig
    floors: dict[Role, tuple[int, float]] = field(default_factory=dict)  # replicas, expires_at
    verdicts: dict[Role, Verdict] = field(default_factory=dict)  # of the last run, for reports in between

    def run(
        self, prediction: Prediction | None, views: Mapping[Role, RoleView], models: Mapping[Role, EngineModel], now: float
    ) -> dict[Role, Verdict]:
        """Size every role for the prediction; on success set the floors anew."""
        if prediction is None:
            self.verdicts = {role: Verdict.hold(Reason.NO_TRAFFIC_DATA) for role in views}
            return self.verdicts
        found = {role: self._capacity(role, view, models[role], prediction) for role, view in views.items()}
        minimum = {role: self.config.min_endpoint_of(role) for role in views}
        verdicts = throughput_verdicts(prediction.requests_per_s or 0.0, found, minimum)
        ttl = self.config.floor_ttl_intervals * self.config.throughput_adjustment_interval_seconds
        for role, verdict in verdicts.items():
            current = views[role].current
            if verdict.replicas is None or current is None:
                continue
            floor = max(minimum[role], limit_step(current, verdict.replicas, self.config.max_throughput_scaling_replicas))
            self.floors[role] = (floor, now + ttl)
            reason = Reason.SET_LOWER_BOUND if self.config.load_loop else verdict.reason
            verdicts[role] = Verdict(floor, reason, {**verdict.evidence, "wanted": verdict.replicas})
        self.verdicts = verdicts
        return verdicts

    def floor(self, role: Role, now: float) -> int | None:
        """The floor in force, or None when there is none or it has expired."""
        replicas, expires_at = self.floors.get(role, (0, 0.0))
        return replicas if now < expires_at else None

    def _capacity(self, role: Role, view: RoleView, model: EngineModel, p: Prediction) -> Capacity | None:
        if p.isl is None or p.osl is None:
            return None
        return capacity(
            model,
            role,
            view.limits,
            isl=p.isl,
            osl=p.osl,
            ttft_sla_s=self.config.ttft_ms / 1000,
            itl_sla_s=self.config.itl_ms / 1000,
            kv_hit_rate=p.kv_hit_rate,
            accept_length=accept_length(p.accept_length, self.config, view),
        )

    def to_state(self) -> dict[str, Any]:
        return {"floors": {role: list(f) for role, f in self.floors.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        self.floors = {role: (int(n), float(at)) for role, (n, at) in state["floors"].items()}


def accept_length(seen: float | None, config: PlannerConfig, view: RoleView) -> float:
    """Tokens per decode step that speculation gives: within 1 and nextn + 1; 1 without speculation."""
    said = view.inventory.capabilities.speculative_nextn if view.inventory and view.inventory.capabilities else None
    nextn = said or config.speculative_nextn
    return 1.0 if nextn <= 0 or seen is None else min(max(seen, 1.0), nextn + 1.0)
