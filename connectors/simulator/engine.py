"""What every simulated engine has: an identity, a life, iterations one after the other, FPMs and heartbeats."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from headrace.connectors.simulator.events import Agenda
from headrace.connectors.simulator.frontend import Frontend
from headrace.connectors.simulator.request import Request
from headrace.connectors.simulator.timing import Limits, Timing, Transfer
from headrace.schemas.base import Role
from headrace.schemas.fpm import VERSION, Fpm, QueuedRequests, ScheduledRequests

NOTHING_QUEUED = QueuedRequests()
NOTHING_SCHEDULED = ScheduledRequests()


class State(StrEnum):
    STARTING = "starting"
    ACTIVE = "active"
    DRAINING = "draining"  # takes no new requests, finishes its own
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who publishes: the worker, and its publisher on the event plane (a different id, as in Dynamo)."""

    role: Role
    worker_id: str  # decimal of an unsigned 63-bit id
    publisher_id: int  # 53 bits


FpmSink = Callable[[Identity, float, Fpm], None]  # published_at in simulated seconds


class Host(Protocol):
    """What an engine asks of the cluster around it."""

    def prefilled(self, request: Request, now: float) -> None:
        """The prompt is done on a prefill worker: find a decode worker."""

    def finished(self, request: Request, now: float) -> None: ...

    def emptied(self, engine: "Engine", now: float) -> None:
        """A draining engine has finished its last request."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all engines of a cluster share. Without a sink no FPM is made, which is faster."""

    agenda: Agenda
    frontend: Frontend
    host: Host
    timing: Timing
    transfer: Transfer
    heartbeat_s: float
    sink: FpmSink | None


class Engine(ABC):
    """One worker of one rank. Subclasses run iterations; `load` is what a router compares."""

    __slots__ = (
        "_heart_beats", "busy", "counter", "identity", "last_published", "limits", "load", "started_at", "state",
        "wall_s", "world",
    )  # fmt: skip

    def __init__(self, identity: Identity, limits: Limits, world: Surroundings, now: float) -> None:
        self.identity = identity
        self.limits = limits
        self.world = world
        self.state = State.STARTING
        self.started_at = now
        self.load = 0  # of the router's unit: prompt tokens or requests that are not done
        self.busy = False  # an iteration is running
        self.wall_s = 0.0  # of the running iteration
        self.counter = 0
        self.last_published = now
        self._heart_beats = False

    @abstractmethod
    def enqueue(self, request: Request, now: float) -> None:
        """A request is routed here."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """No request is waiting, running, or held for somebody else."""

    @abstractmethod
    def _start(self) -> float:
        """Begin an iteration and return its seconds, or 0 when there is nothing to do now."""

    @abstractmethod
    def _end(self, now: float) -> float | None:
        """The running iteration is over. Returns when the next one is."""

    def activate(self, now: float) -> None:
        """Start-up is over: from now on the engine takes requests, and lives by its heartbeat."""
        self.state = State.ACTIVE
        self.last_published = now
        self._beat()

    def wake(self, now: float) -> None:
        """Something may have become possible: begin an iteration if none is running."""
        if self.busy:
            return
        wall = self._start()
        if wall > 0.0:
            self.busy = True
            self.wall_s = wall
            self.world.agenda.at(now + wall, self._end)

    def _continue(self, now: float) -> float | None:
        """The end of every `_end`: the next iteration follows at once, or the engine goes idle."""
        wall = self._start()
        if wall > 0.0:
            self.wall_s = wall
            return now + wall
        self.busy = False
        if self.state is State.DRAINING and self.empty:
            self.world.host.emptied(self, now)
        else:
            self._beat()
        return None

    def publish(self, now: float, wall_s: float, scheduled: ScheduledRequests, queued: QueuedRequests) -> None:
        """Give the sink one FPM. Only called where there is a sink."""
        self.counter += 1
        self.last_published = now
        sink = self.world.sink
        assert sink is not None
        sink(self.identity, now, Fpm(VERSION, self.identity.worker_id, 0, self.counter, wall_s, scheduled, queued))

    def _beat(self) -> None:
        """See to it that one heartbeat event is on the agenda."""
        if not self._heart_beats and self.world.sink is not None:
            self._heart_beats = True
            self.world.agenda.at(self.last_published + self.world.heartbeat_s, self._heartbeat)

    def _heartbeat(self, now: float) -> float | None:
        """All zero after each `heartbeat_s` of idle silence. An engine within an iteration is silent, not idle."""
        if self.busy or self.state is State.GONE:
            self._heart_beats = False
            return None
        due = self.last_published + self.world.heartbeat_s
        if due > now:
            return due
        self.publish(now, 0.0, NOTHING_SCHEDULED, NOTHING_QUEUED)
        return now + self.world.heartbeat_s
