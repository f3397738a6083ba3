"""A role as one tick sees it: what exists, what its engines have in front of them, and what is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.models.known import Known, Unknown
from headrace.models.perf.latency import EngineLimits, EngineLoad
from headrace.models.scaling.shape import Shape, replica_gpus
from headrace.schemas.base import Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.fpm import Fpm
from headrace.schemas.inventory import Capabilities, RoleInventory
from headrace.streams.agents.fpm import FpmObserver, Key
from headrace.streams.agents.inventory import InventoryObserver
from headrace.streams.agents.ledger import Ledger

IDLE = EngineLoad()


@dataclass(frozen=True, slots=True)
class RoleView:
    """`inventory` None = unknown (see `unknown`). `gpus` None = the shape of a replica is unknown.

    `in_force` is what was decided and carried out last. `settling` is true while the inventory is older than an
    executor's word that it has changed something: it cannot show that yet.
    """

    role: Role
    inventory: RoleInventory | None
    engines: Mapping[Key, EngineLoad] = field(default_factory=dict)  # by worker id and dp rank
    width: int = 1  # ranks per worker
    spread: int = 1  # workers per replica: a multinode engine may have one on each node
    limits: EngineLimits = field(default_factory=EngineLimits)  # of one rank; defaults where it has not said
    context_length: int | None = None  # tokens
    kv_capacity: int | None = None  # tokens per rank, None = the engine has not said
    kv_seen: int = 0  # tokens that one rank was ever seen to hold
    nextn: int = 0  # speculative tokens
    gpus: int | None = None
    in_force: int | None = None
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
        """Replicas that are or will be there: what was carried out, until the inventory can show it; then ready and
        starting ones, draining ones not."""
        if self.inventory is None:
            return None
        if self.settling and self.in_force is not None:
            return self.in_force
        return self.inventory.ready + self.inventory.starting

    @property
    def workers_seen(self) -> int:
        """Distinct workers with a fresh FPM."""
        return len({worker for worker, _ in self.engines})

    @property
    def ranks(self) -> int:
        """Engine ranks of one replica."""
        return self.width * self.spread

    @property
    def complete(self) -> bool:
        """Does every rank of every ready worker speak?"""
        seen = self.workers_seen
        return seen >= self.ready * self.spread and len(self.engines) >= seen * self.width

    @property
    def held_limits(self) -> EngineLimits:
        """The limits with which a reduction is judged: an unknown KV capacity is as much as was seen to be held."""
        return self.limits if self.kv_capacity is not None else replace(self.limits, max_kv_tokens=self.kv_seen + 1)

    def known(self) -> dict[str, float]:
        """What was seen, for the tick report."""
        seen: dict[str, float] = {"workers_with_fpm": self.workers_seen}
        if self.inventory is not None:
            inv = self.inventory
            seen |= {"ready": inv.ready, "starting": inv.starting, "draining": inv.draining}
            if inv.unschedulable:
                seen["unschedulable"] = inv.unschedulable
            if inv.desired is not None:
                seen["desired"] = inv.desired
        if self.in_force is not None:
            seen["in_force"] = self.in_force
        if self.gpus is not None:
            seen["gpus_per_replica"] = self.gpus
        if self.engines:
            loads = self.engines.values()
            seen["ranks_with_fpm"] = len(loads)
            seen["queued_prefill_tokens"] = sum(e.queued_prefill_tokens for e in loads)
            seen["queued_prefill_requests"] = sum(e.queued_prefill_requests for e in loads)
            seen["decode_requests"] = sum(e.scheduled_decode_requests for e in loads)
            seen["decode_kv_tokens"] = sum(e.scheduled_decode_kv_tokens for e in loads)
            seen["queued_decode_requests"] = sum(e.queued_decode_requests for e in loads)
        return {name: float(value) for name, value in seen.items()}


def look(
    role: Role, now: float, *, config: PlannerConfig, fpm: FpmObserver, inventory: InventoryObserver, ledger: Ledger
) -> RoleView:
    """The view of a role at `now`."""
    in_force = None if ledger.in_force is None else ledger.in_force.get(role)
    found = inventory.role(role, now)
    unknown: dict[str, str] = {}
    if isinstance(found, Unknown):
        unknown["inventory"] = found.why
        found = found if inventory.heard else _infer(role, now, fpm, in_force, unknown)
    inv = found.value if isinstance(found, Known) else None
    fresh = fpm.fresh(role, now, None if inv is None else inv.workers)
    if not fresh:
        unknown["fpm"] = _why_no_fpm(role, now, fpm)
    said = (inv.capabilities if inv else None) or Capabilities()
    changed = ledger.changed_at
    shape = _shape(inv, config.engine_num_gpu(role))
    if shape.why:
        unknown["gpus"] = shape.why
    return RoleView(
        role=role,
        inventory=inv,
        engines={key: engine_load(f, fpm.mean(role, key)) for key, f in fresh.items()},
        width=fpm.widths.get(role) or said.dp_size or 1,
        spread=1 if inv is None else inv.workers_per_replica,
        limits=_limits(said),
        context_length=said.context_length or None,
        kv_capacity=said.max_kv_tokens or None,
        kv_seen=fpm.rows[role].most_kv_tokens,
        nextn=said.speculative_nextn or config.speculative_nextn,
        gpus=shape.gpus,
        in_force=in_force,
        settling=changed is not None and role in inventory.seen and inventory.seen_at(role) <= changed,
        unknown=unknown,
    )


def _shape(inv: RoleInventory | None, configured: int | None) -> Shape:
    if inv is None:
        return Shape(configured)
    return replica_gpus(inv.gpus_per_replica, inv.gpus_per_node, inv.nodes_per_replica, configured)


def _infer(
    role: Role, now: float, fpm: FpmObserver, in_force: int | None, unknown: dict[str, str]
) -> Known[RoleInventory] | Unknown:
    """Without any inventory record the workers that speak are the inventory.

    A silent one may still be there, so it counts until it is forgotten; and what an executor has carried out is
    believed over what is heard: a count that is too low would turn a step up into a step down.
    """
    heard = len(fpm.workers(role))
    if not heard:
        return Unknown(unknown["inventory"])
    if now - fpm.since.get(role, now) < fpm.stale_after_s:
        unknown["inventory"] += f"; the engines that send FPMs are counted for {fpm.stale_after_s:g} s first"
        return Unknown(unknown["inventory"])
    unknown["inventory"] += "; counted by the engines that send FPMs"
    if in_force is None:
        return Known(RoleInventory(ready=heard))
    speaking = len({worker for worker, _ in fpm.fresh(role, now, None)})
    return Known(RoleInventory(ready=in_force, draining=max(0, speaking - in_force)))


def engine_load(fpm: Fpm, mean: tuple[float, float] | None = None) -> EngineLoad:
    """What one engine rank has in front of it; `mean` is its decode load over a while, in place of one iteration's."""
    s, q = fpm.scheduled_requests, fpm.queued_requests
    requests, kv_tokens = mean or (s.num_decode_requests, s.sum_decode_kv_tokens)
    return EngineLoad(
        queued_prefill_requests=q.num_prefill_requests,
        queued_prefill_tokens=q.sum_prefill_tokens,
        scheduled_prefill_requests=s.num_prefill_requests,
        scheduled_prefill_tokens=s.sum_prefill_tokens,
        scheduled_decode_requests=requests,
        scheduled_decode_kv_tokens=kv_tokens,
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


def _why_no_fpm(role: Role, now: float, fpm: FpmObserver) -> str:
    newest_at = fpm.newest_at(role)
    if newest_at is None:
        return "no FPM has come from an engine of this role"
    if now - newest_at > fpm.stale_after_s:
        return f"the newest FPM of this role is {now - newest_at:.0f} s old (limit {fpm.stale_after_s:g} s)"
    strangers = ", ".join(sorted(fpm.workers(role))[:3])[:120]
    return f"FPMs come from workers that the inventory does not list: {strangers}"
