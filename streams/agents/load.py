"""The load loop: what the engines' queues and batches ask for, behind the gates that make a decision safe."""

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.models.perf.engine import EngineModel
from headrace.models.scaling.load import LoadInputs, load_verdict
from headrace.models.scaling.thresholds import band_of, signals, threshold_verdict
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, PREFILL, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.reasons import Reason
from headrace.streams.agents.throughput import accept_length
from headrace.streams.agents.traffic import TrafficObserver
from headrace.streams.agents.view import RoleView


@dataclass(frozen=True, slots=True)
class LoadLoop:
    """Stateless: everything it needs is in the view."""

    config: PlannerConfig

    def run(
        self,
        views: Mapping[Role, RoleView],
        models: Mapping[Role, EngineModel],
        traffic: TrafficObserver,
        in_progress: bool,
    ) -> dict[Role, Verdict]:
        """One verdict per role. The estimates are made even where the gates hold, so that the report shows them."""
        return {role: self._role(view, models[role], traffic, in_progress) for role, view in views.items()}

    def _role(self, view: RoleView, model: EngineModel, traffic: TrafficObserver, in_progress: bool) -> Verdict:
        if view.inventory is None:
            return Verdict.hold(Reason.NO_INVENTORY)
        if not view.engines:
            return Verdict.hold(Reason.NO_FPM_DATA)
        verdict = self._want(view, model, traffic)
        gate = self._gate(view, verdict, in_progress)
        return verdict if gate is None else Verdict.hold(gate, **verdict.evidence)

    def _gate(self, view: RoleView, verdict: Verdict, in_progress: bool) -> Reason | None:
        """Why this verdict may not act now, or None.

        While replicas start, only a reduction passes: it cancels what has not come up (dynamo#14671). Engines that do
        not report may be the loaded ones, so a scale-down needs them all; a scale-up needs half of them.
        """
        assert view.inventory is not None
        inv = view.inventory
        if in_progress or view.settling:
            return Reason.SCALING_IN_PROGRESS
        if inv.starting and (verdict.replicas is None or verdict.replicas > inv.ready):
            return Reason.SCALING_IN_PROGRESS
        if view.workers_seen > inv.ready + inv.starting + inv.draining:
            return Reason.WORKER_COUNT_MISMATCH
        if view.workers_seen < inv.ready:
            enough = 2 * view.workers_seen >= inv.ready and verdict.reason is Reason.SCALE_UP
            return None if enough else Reason.WORKER_COUNT_MISMATCH
        return None

    def _want(self, view: RoleView, model: EngineModel, traffic: TrafficObserver) -> Verdict:
        config, role = self.config, view.role
        engines = list(view.engines.values())
        if config.optimization_target == "sla":
            return load_verdict(
                LoadInputs(
                    role=role,
                    workers=view.ready,
                    engines=engines,
                    model=model,
                    limits=view.limits,
                    ttft_sla_s=config.ttft_ms / 1000,
                    itl_sla_s=config.itl_ms / 1000,
                    sensitivity=config.load_scaling_down_sensitivity / 100,
                    min_endpoint=config.min_endpoint_of(role),
                    kv_hit_rate=traffic.kv_hit_rate if role in (PREFILL, AGG) else None,
                    accept_length=accept_length(traffic.accept_length, config, view),
                )
            )
        if role == PREFILL:
            per = None if view.context_length is None else float(view.context_length)
        else:
            per = float(view.limits.max_kv_tokens) if view.kv_limit_known else None
        values = signals(role, engines, per=per, tokens=config.optimization_target == "load")
        return threshold_verdict(
            band_of(config, role), values, workers=view.ready, min_endpoint=config.min_endpoint_of(role)
        )
