"""The workers of one role: starting, active, draining; what they cost; requests that wait for the first of them."""

from collections import deque
from collections.abc import Callable
from functools import partial

from headrace.connectors.simulator.config import RoleConfig
from headrace.connectors.simulator.engine import Engine, State
from headrace.connectors.simulator.events import Agenda
from headrace.connectors.simulator.request import Request
from headrace.connectors.simulator.router import Router
from headrace.schemas.base import Role
from headrace.schemas.inventory import Capabilities, RoleInventory


class Pool:
    """`target` is what was asked for; starting and active workers follow at once, draining ones leave in their time.

    A worker costs its GPUs from the moment it is asked for until its last request is finished.
    """

    def __init__(
        self, role: Role, config: RoleConfig, make: Callable[[Role, float], Engine], router: Router, agenda: Agenda
    ) -> None:
        self.role = role
        self.config = config
        self.starting: list[Engine] = []
        self.active: list[Engine] = []  # oldest first
        self.draining: list[Engine] = []
        self.unrouted: deque[Request] = deque()  # no worker is active
        self.target = config.replicas
        self.revision = 0  # rises with every change of the workers
        self._make = make
        self._router = router
        self._agenda = agenda
        self._gpu_s = 0.0
        self._counted_to = 0.0
        for _ in range(config.replicas):
            worker = make(role, 0.0)
            self.active.append(worker)
            worker.activate(0.0)

    @property
    def provisioned(self) -> int:
        """Workers that cost: starting, active and draining."""
        return len(self.starting) + len(self.active) + len(self.draining)

    @property
    def settled(self) -> bool:
        """The target is what there is: nobody starts, nobody drains."""
        return len(self.active) == self.target and not self.starting and not self.draining

    def route(self, request: Request, now: float) -> None:
        if self.active:
            self._router(self.active).enqueue(request, now)
        else:
            self.unrouted.append(request)

    def set_target(self, n: int, now: float) -> None:
        """Start workers, or stop some: those that are starting first (newest first), then the least loaded."""
        self._count(now)
        self.target = n
        surplus = len(self.starting) + len(self.active) - n
        for _ in range(-surplus):
            worker = self._make(self.role, now)
            self.starting.append(worker)
            self._agenda.at(now + self.config.startup_s, partial(self._ready, worker))
        for _ in range(min(surplus, len(self.starting))):
            self.starting.pop().state = State.GONE
            surplus -= 1
        for _ in range(surplus):
            self._drain(min(reversed(self.active), key=lambda w: w.load), now)
        self.revision += 1

    def gpu_seconds(self, now: float) -> float:
        self._count(now)
        return self._gpu_s

    def emptied(self, worker: Engine, now: float) -> None:
        """A draining worker has nothing left to do."""
        self._count(now)
        worker.state = State.GONE
        self.draining.remove(worker)
        self.revision += 1

    def inventory(self) -> RoleInventory:
        limits = self.config.limits
        return RoleInventory(
            ready=len(self.active),
            starting=len(self.starting),
            draining=len(self.draining),
            desired=self.target,
            gpus_per_replica=self.config.gpus_per_replica,
            capabilities=Capabilities(
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_num_seqs=limits.max_num_seqs,
                max_kv_tokens=limits.max_kv_tokens,
                context_length=limits.max_kv_tokens,
                dp_size=1,
            ),
            workers=[w.identity.worker_id for w in self.active],
        )

    def _ready(self, worker: Engine, now: float) -> None:
        if worker.state is not State.STARTING:
            return  # it was cancelled
        self._count(now)
        self.starting.remove(worker)
        self.active.append(worker)
        self.revision += 1
        worker.activate(now)
        while self.unrouted:
            worker.enqueue(self.unrouted.popleft(), now)

    def _drain(self, worker: Engine, now: float) -> None:
        self.active.remove(worker)
        worker.state = State.DRAINING
        self.draining.append(worker)
        if worker.empty and not worker.busy:
            self.emptied(worker, now)

    def _count(self, now: float) -> None:
        """Bring the integral of provisioned GPUs up to now; called before every change."""
        self._gpu_s += self.provisioned * self.config.gpus_per_replica * (now - self._counted_to)
        self._counted_to = now
