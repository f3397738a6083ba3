"""A role as one tick sees it: what exists, what its engines have in front of them, and what is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.models.known import Unknown
from headrace.models.perf.latency import EngineLimits, EngineLoad
from headrace.schemas.base import Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.fpm import Fpm
from headrace.schemas.inventory import Capabilities, RoleInventory
from headrace.streams.agents.fpm import FpmObserver
from headrace.streams.agents.inventory import InventoryObserver

IDLE = EngineLoad()


@dataclass(frozen=True, slots=True)
class RoleView:
    """`inventory` None = unknown (see `unknown`). `gpus` None = the shape of a replica is unknown.

    `settling` is true while the inventory is older than the last settlement: it cannot show its effect yet.
    """

    role: Role
    inventory: RoleInventory | None
    engines: Mapping[tuple[str, int], EngineLoad] = field(default_factory=dict)
    workers_seen: int = 0  # distinct workers with a fresh FPM
    limits: EngineLimits = field(default_factory=EngineLimits)
    context_length: int | None = None
    kv_limit_known: bool = False
    gpus: int | None = None
    settling: bool = False
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> int:
        return 0 if self.inventory is None else self.inventory.ready

    @property
    def idle(self) -> bool:
        """Do all engines that speak say that they have nothing to do?"""
        return bool(self.engines) and all(e == IDLE for e in self.engines.values())

    @property
    def current(self) -> int | None:
        """Replicas that are or will be there: ready and starting, draining ones not."""
        return None if self.inventory is None else self.inventory.ready + self.inventory.starting

    def known(self) -> dict[str, float]:
        """What was seen, for the tick report."""
        seen: dict[str, float] = {"workers_with_fpm": self.workers_seen}
        if self.inventory is not None:
            inv = self.inventory
            seen |= {"ready": inv.ready, "starting": inv.starting, "draining": inv.draining}
            if inv.unschedulable:
                seen["unschedulable"] = inv.unschedulable
        if self.gpus is not None:
            seen["gpus_per_replica"] = self.gpus
        if self.engines:
            loads = self.engines.values()
            seen["queued_prefill_tokens"] = sum(e.queued_prefill_tokens for e in loads)
            seen["queued_prefill_requests"] = sum(e.queued_prefill_requests for e in loads)
            seen["decode_requests"] = sum(e.scheduled_decode_requests for e in loads)
            seen["decode_kv_tokens"] = sum(e.scheduled_decode_kv_tokens for e in loads)
            seen["queued_decode_requests"] = sum(e.queued_decode_requests for e in loads)
        return seen


def look(
    role: Role, now: float, *, config: PlannerConfig, fpm: FpmObserver, inventory: InventoryObserver, settled_at: float
) -> RoleView:
    """The view of a role at `now`. Without any inventory record, the workers that speak are the inventory."""
    unknown: dict[str, str] = {}
    found = inventory.role(role, now)
    inv = None
    if isinstance(found, Unknown):
        unknown["inventory"] = found.why
    else:
        inv = found.value
    fresh = fpm.fresh(role, now, None if inv is None else inv.workers)
    workers = len({worker for worker, _ in fresh})
    inferred = inv is None and inventory.latest is None and workers > 0
    if inferred:
        inv = RoleInventory(ready=workers)
        unknown["inventory"] += "; counted by the engines that send FPMs"
    if not fresh:
        unknown["fpm"] = _why_no_fpm(fpm.newest_at(role), now, fpm.stale_after_s)
    capabilities = (inv.capabilities if inv else None) or Capabilities()
    gpus = config.engine_num_gpu(role)
    if gpus is None and inv is not None:
        gpus = inv.gpus_per_replica or None
    return RoleView(
        role=role,
        inventory=inv,
        engines={key: engine_load(f) for key, f in fresh.items()},
        workers_seen=workers,
        limits=_limits(capabilities),
        context_length=capabilities.context_length,
        kv_limit_known=capabilities.max_kv_tokens is not None,
        gpus=gpus,
        settling=not inferred and inventory.latest is not None and inventory.latest.observed_at <= settled_at,
        unknown=unknown,
    )


def engine_load(fpm: Fpm) -> EngineLoad:
    """What one engine rank has in front of it."""
    s, q = fpm.scheduled_requests, fpm.queued_requests
    return EngineLoad(
        queued_prefill_requests=q.num_prefill_requests,
        queued_prefill_tokens=q.sum_prefill_tokens,
        scheduled_prefill_requests=s.num_prefill_requests,
        scheduled_prefill_tokens=s.sum_prefill_tokens,
        scheduled_decode_requests=s.num_decode_requests,
        scheduled_decode_kv_tokens=s.sum_decode_kv_tokens,
        queued_decode_requests=q.num_decode_requests,
        queued_decode_kv_tokens=q.sum_decode_kv_tokens,
    )


def _limits(c: Capabilities) -> EngineLimits:
    default = EngineLimits()
    return EngineLimits(
        max_num_batched_tokens=c.max_num_batched_tokens or default.max_num_batched_tokens,
        max_num_seqs=c.max_num_seqs or default.max_num_seqs,
        max_kv_tokens=c.max_kv_tokens or default.max_kv_tokens,
    )


def _why_no_fpm(newest_at: float | None, now: float, stale_after_s: float) -> str:
    if newest_at is None:
        return "no FPM has come from an engine of this role"
    return f"the newest FPM of this role is {now - newest_at:.0f} s old (limit {stale_after_s:g} s)"
