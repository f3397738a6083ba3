"""The simulated cluster: requests of a trace through frontend, router, engines and KV transfer, event by event.

All times of this module are simulated seconds since the trace began; records carry `origin_s` + that.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.engine import Engine, FpmSink, Identity, Surroundings
from headrace.connectors.simulator.engine_agg import AggEngine
from headrace.connectors.simulator.engine_decode import DecodeEngine
from headrace.connectors.simulator.engine_prefill import PrefillEngine
from headrace.connectors.simulator.events import Agenda
from headrace.connectors.simulator.frontend import Frontend
from headrace.connectors.simulator.pool import Pool
from headrace.connectors.simulator.request import Request
from headrace.connectors.simulator.router import make_router
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.errors import ConfigError
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.traffic import TrafficWindow

ENGINES: dict[Role, type[Engine]] = {PREFILL: PrefillEngine, DECODE: DecodeEngine, AGG: AggEngine}
MAX_REPLICAS = 100_000


@dataclass(frozen=True, slots=True)
class Counts:
    ready: int
    starting: int
    draining: int
    target: int


@dataclass(frozen=True, slots=True)
class Action:
    """One change of a role's target."""

    at: float
    role: Role
    before: int
    after: int


class Cluster:
    """Deterministic: the same configuration, trace, seed and calls give the same bytes.

    `sink` receives every FPM; without one none is made, which halves the time.
    """

    def __init__(self, config: SimulatorConfig, trace: Trace, seed: int = 0, sink: FpmSink | None = None) -> None:
        self.config = config
        self.trace = trace
        self.now = 0.0
        self.frontend = Frontend()
        self.requests = [Request(i, at, isl, osl) for i, (at, isl, osl) in enumerate(trace.rows())]
        self.unfinished = len(self.requests)
        self.actions: list[Action] = []
        self._arrivals: Iterator[Request] = iter(self.requests)
        self._next = next(self._arrivals, None)
        self._agenda = Agenda()
        self._rng = random.Random(seed)
        self._ids: set[int] = set()
        self._world = Surroundings(
            self._agenda, self.frontend, self, config.timing, config.transfer, config.heartbeat_s, sink
        )
        self.pools: dict[Role, Pool] = {
            role: Pool(role, r, self._make, make_router(config.router), self._agenda)
            for role, r in config.roles.items()
        }
        self._entry = self.pools[PREFILL if config.disaggregated else AGG]
        self._longest = _longest_request(config)
        self._window_from = self.frontend.look(0.0)

    def run_until(self, t: float) -> None:
        """Let everything happen that is due up to and including `t`; then it is `t`."""
        heap, run_next = self._agenda.heap, self._agenda.run_next
        while True:
            event_at = heap[0][0] if heap else math.inf
            arrival = self._next
            if arrival is not None and arrival.arrived_at <= event_at:
                if arrival.arrived_at > t:
                    break
                self._arrive(arrival)
            elif event_at > t:
                break
            else:
                run_next()
        self.now = max(self.now, t)

    @property
    def drained(self) -> bool:
        """Every request of the trace has arrived and is finished or refused."""
        return self.unfinished == 0

    @property
    def revision(self) -> int:
        """Rises whenever the workers or targets change: publish the inventory then."""
        return sum(pool.revision for pool in self.pools.values())

    def set_targets(self, targets: Mapping[Role, int]) -> None:
        """Ask for replicas per role, now; roles that are not named stay. Raises ConfigError and changes nothing."""
        for role, n in targets.items():
            if role not in self.pools:
                raise ConfigError(f"target for role {role!r}: the simulated cluster has {', '.join(self.pools)}")
            if not 0 <= n <= MAX_REPLICAS:
                raise ConfigError(f"target of {n} replicas for role {role!r}: give 0 to {MAX_REPLICAS}")
        for role, n in targets.items():
            pool = self.pools[role]
            if pool.target != n:
                self.actions.append(Action(self.now, role, pool.target, n))
                pool.set_target(n, self.now)

    def targets_reached(self) -> bool:
        """Every role shows its target: the new workers are ready, the old ones have drained."""
        return all(pool.settled for pool in self.pools.values())

    def counts(self) -> dict[Role, Counts]:
        return {
            role: Counts(len(p.active), len(p.starting), len(p.draining), p.target) for role, p in self.pools.items()
        }

    def inventory(self) -> WorkerInventory:
        return WorkerInventory(
            dgd=self.config.dgd,
            source="simulator",
            observed_at=self.config.origin_s + self.now,
            roles={role: pool.inventory() for role, pool in self.pools.items()},
        )

    def traffic_window(self) -> TrafficWindow:
        """What the frontend saw since the last call (or since the beginning)."""
        before = self._window_from
        self._window_from = self.frontend.look(self.now)
        return self.frontend.window(before, self.now, self.config.dgd, self.config.origin_s)

    def gpu_hours(self) -> float:
        """GPUs that were starting, active or draining, integrated up to now."""
        return sum(pool.gpu_seconds(self.now) for pool in self.pools.values()) / 3600.0

    # what the engines call

    def prefilled(self, request: Request, now: float) -> None:
        self.pools[DECODE].route(request, now)

    def finished(self, request: Request, now: float) -> None:
        request.finished_at = now
        self.unfinished -= 1
        self.frontend.finished(request)

    def emptied(self, engine: Engine, now: float) -> None:
        self.pools[engine.identity.role].emptied(engine, now)

    def _arrive(self, request: Request) -> None:
        self._next = next(self._arrivals, None)
        self.frontend.arrived()
        if request.isl > self._longest[0] or request.isl + request.osl > self._longest[1]:
            request.rejected = True
            self.unfinished -= 1
            self.frontend.refused()
        else:
            self._entry.route(request, request.arrived_at)

    def _make(self, role: Role, now: float) -> Engine:
        worker_id = self._fresh_id(63)
        identity = Identity(role, str(worker_id), self._fresh_id(53))
        return ENGINES[role](identity, self.config.roles[role].limits, self._world, now)

    def _fresh_id(self, bits: int) -> int:
        while True:
            number = self._rng.getrandbits(bits)
            if number and number not in self._ids:
                self._ids.add(number)
                return number


def _longest_request(config: SimulatorConfig) -> tuple[int, int]:
    """The longest prompt, and prompt plus output, that any worker can hold; longer requests are refused."""
    if not config.disaggregated:
        most = config.roles[AGG].limits.max_kv_tokens
        return most, most
    return config.roles[PREFILL].limits.max_kv_tokens, config.roles[DECODE].limits.max_kv_tokens
