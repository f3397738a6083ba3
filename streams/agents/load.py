"""The load loop: what the engines' queues and batches ask for, behind the gates that make a decision safe."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLoad
from headrace.models.scaling.load import LoadInputs, load_verdict
from headrace.models.scaling.thresholds import Pool, band_of, signals, threshold_verdict
from headrace.models.scaling.verdict import Verdict
from headrace.schemas.base import AGG, PREFILL, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.reasons import Reason
from headrace.streams.agents.throughput import accept_length
from headrace.streams.agents.traffic import TrafficObserver
from headrace.streams.agents.view import RoleView

CALM_RUNS = 3  # in a row that must want a reduction before it cancels what is starting: a dip is not the end of a burst


@dataclass(slots=True)
class LoadLoop:
    """One verdict per role and run. Remembers only for how many runs in a row a role has wanted fewer workers."""

    config: PlannerConfig
    calm: dict[Role, int] = field(default_factory=dict)

    def run(
        self,
        views: Mapping[Role, RoleView],
        models: Mapping[Role, EngineModel],
        traffic: TrafficObserver,
        in_progress: bool,
    ) -> dict[Role, Verdict]:
        """The estimates are made even where the gates hold, so that the report shows them."""
        return {role: self._role(view, models[role], traffic, in_progress) for role, view in views.items()}

    def _role(self, view: RoleView, model: EngineModel, traffic: TrafficObserver, in_progress: bool) -> Verdict:
        if view.inventory is None or not view.engines:
            self.calm[view.role] = 0
            return Verdict.hold(Reason.NO_INVENTORY if view.inventory is None else Reason.NO_FPM_DATA)
        verdict = self._want(view, model, traffic)
        self.calm[view.role] = self.calm.get(view.role, 0) + 1 if verdict.reason is Reason.SCALE_DOWN else 0
        gate = self._gate(view, verdict, in_progress)
        return verdict if gate is None else Verdict.hold(gate, **verdict.evidence)

    def _gate(self, view: RoleView, verdict: Verdict, in_progress: bool) -> Reason | None:
        """Why this verdict may not act now, or None.

        While replicas start, only a lasting reduction passes: it cancels what has not come up (dynamo#14671). Engines
        that do not report may be the loaded ones, so a scale-down needs them all; a scale-up needs half of them.
        """
        assert view.inventory is not None
        inv, seen = view.inventory, view.workers_seen
        if in_progress or view.settling:
            return Reason.SCALING_IN_PROGRESS
        if inv.starting and (verdict.reason is not Reason.SCALE_DOWN or self.calm[view.role] < CALM_RUNS):
            return Reason.SCALING_IN_PROGRESS
        if seen > (inv.ready + inv.starting + inv.draining) * view.spread:
            return Reason.WORKER_COUNT_MISMATCH
        if verdict.reason is Reason.SCALE_UP:
            return None if 2 * seen >= inv.ready * view.spread else Reason.WORKER_COUNT_MISMATCH
        return None if view.complete else Reason.WORKER_COUNT_MISMATCH

    def _want(self, view: RoleView, model: EngineModel, traffic: TrafficObserver) -> Verdict:
        assert view.inventory is not None
        config, role, least = self.config, view.role, self.config.min_endpoint_of(view.role)
        engines = serving(view)
        if config.optimization_target == "sla":
            return load_verdict(
                LoadInputs(
                    role=role,
                    workers=view.ready,
                    starting=view.inventory.starting,
                    engines=engines,
                    model=model,
                    limits=view.held_limits,
                    ttft_sla_s=config.ttft_ms / 1000,
                    itl_sla_s=config.itl_ms / 1000,
                    sensitivity=config.load_scaling_down_sensitivity / 100,
                    min_endpoint=least,
                    kv_hit_rate=traffic.kv_hit_rate if role in (PREFILL, AGG) else None,
                    accept_length=accept_length(traffic.accept_length, view),
                )
            )
        per = view.context_length if role == PREFILL else view.kv_capacity
        values = signals(
            role,
            engines,
            per=None if per is None else float(per),
            tokens=config.optimization_target == "load",
        )
        pool = Pool(view.ready, view.inventory.starting, least, sensitivity=config.load_scaling_down_sensitivity / 100)
        return threshold_verdict(band_of(config, role), values, pool)


def serving(view: RoleView) -> list[EngineLoad]:
    """The loads of the engines that take requests.

    Where the inventory does not name its workers, draining ones speak too. They only lose load, so as many of the
    least loaded workers as there are too many are taken to be them.
    """
    assert view.inventory is not None
    inv, spread = view.inventory, view.spread
    surplus = min(view.workers_seen - inv.ready * spread, inv.draining * spread)
    if surplus <= 0:
        return list(view.engines.values())
    load: dict[str, float] = {}
    for (worker, _), e in view.engines.items():
        tokens = e.queued_prefill_tokens + e.scheduled_prefill_tokens + e.queued_decode_kv_tokens
        load[worker] = load.get(worker, 0.0) + tokens + e.scheduled_decode_kv_tokens
    leaving = set(sorted(load, key=lambda worker: (load[worker], worker))[:surplus])
    return [e for (worker, _), e in view.engines.items() if worker not in leaving]
