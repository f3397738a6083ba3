"""Everything that `headrace run` runs for the DGDs that it owns: nodes, sources, executors if asked for."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.partitions import partition_of
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.sources.dynamo_fpm import DynamoFpmOptions, DynamoFpmSource
from headrace.connectors.sources.fpm_packer import COMPONENTS, Route
from headrace.connectors.sources.frontend_metrics import FrontendOptions, FrontendSource
from headrace.connectors.sources.frontend_page import Selector
from headrace.connectors.sources.inventory import DeclaredInventory
from headrace.schemas.base import Record
from headrace.schemas.errors import ConfigError
from headrace.streams.fleet import Fleet
from headrace.streams.runtime.clock import Clock, ScaledClock
from headrace.streams.runtime.discovery import Discovery
from headrace.streams.runtime.executors import executor_of
from headrace.streams.runtime.groups import run_together
from headrace.streams.runtime.lease_terms import LeaseOptions
from headrace.streams.runtime.leases import Leases
from headrace.streams.runtime.node import NodeOptions, PlannerNode
from headrace.streams.runtime.profiles import ProfilePublisher
from headrace.streams.runtime.shard_host import ShardHost
from headrace.streams.runtime.shared_reads import SharedReads
from headrace.streams.settings import DynamoFpmSettings, FrontendSettings, Settings

STOP_S = 6.0  # for what is under way when we are stopped; a bus that is away would hold it for longer
STARTS = 16  # DGDs that recover at a time


class Service:
    """The DGDs of a fleet that fall to this process. Build it, then :meth:`run`."""

    def __init__(
        self,
        settings: Settings,
        records: RecordBus,
        clock: Clock,
        on_tick: Callable[[list[Record]], None] | None = None,
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Raises ConfigError for a DGD that could not be planned. `on_end` is told of a DGD that is ours no more."""
        self.fleet = Fleet.of(settings)
        self._records = records
        self._clock = clock
        self._on_tick = on_tick
        shards = settings.edges.shards
        self._partition_of = partial(partition_of, partitions=shards.partitions)
        self._shared = SharedReads(records.bus)
        self._starting = asyncio.Semaphore(STARTS)
        self.nodes: dict[str, PlannerNode] = {}
        self.host = ShardHost(self._partition_of, self._plan, self._excluded, on_end)
        options = LeaseOptions(self.fleet.group, shards.lease_seconds, self.fleet.alone)
        self.leases = Leases(records.bus, options, self.host)
        for name in self.fleet.names:
            _sources(self.fleet.settings_of(name), records, clock)  # what cannot be built is an error now
        self._found(self.fleet.names)

    async def run(self, stop: asyncio.Event) -> None:
        """Plan what falls to us until `stop` is set, then hand it over."""
        parts = [self.leases.run(stop)]
        if self.fleet.patterns:
            parts.append(Discovery(self._records.bus, self.fleet.matches, self._found).run(stop))
        try:
            await run_together(parts, stop, STOP_S)
        finally:
            await self.host.close()
            await self._shared.close()

    @property
    def connected(self) -> bool:
        return self._records.bus.connected

    @property
    def consumers(self) -> int:
        """Ordered readers that are open for the planners."""
        return self._shared.consumers

    def late_ticks(self) -> list[tuple[str, float]]:
        """DGDs whose tick should have been, each with its interval in seconds of the wall clock."""
        speed = self._clock.speed if isinstance(self._clock, ScaledClock) else 1.0
        now = self._clock.now()
        running = [(dgd, node.planner) for dgd, node in self.nodes.items() if node.planning]
        return [(dgd, p.config.base_tick_seconds / speed) for dgd, p in running if p.next_tick_at < now]

    def _found(self, dgds: Iterable[str]) -> None:
        if self.host.discovered(dgds):
            self.leases.wake()

    def _excluded(self, dgd: str) -> bool:
        """Has it planners of its own, that know no others?"""
        return dgd in self.leases.view.alone(self.fleet.group)

    async def _plan(self, dgd: str, stop: asyncio.Event) -> None:
        """One DGD until `stop` is set. Raises what its node raises; the rest has stopped then."""
        settings = self.fleet.settings_of(dgd)
        records, clock = self._records, self._clock
        reading = RecordBus(self._shared, records.reader_name, records.clock)
        options = NodeOptions(on_tick=self._on_tick, starting=self._starting)
        node = self.nodes[dgd] = PlannerNode(reading, settings.planner, dgd, clock, options)
        profiles = ProfilePublisher(records, dgd, settings.planner, clock)
        parts: list[Any] = [node, profiles, *_sources(settings, records, clock)]
        if settings.edges.executor is not None:
            parts.append(executor_of(settings.edges.executor, records, dgd))
        inner = asyncio.Event()  # so that an error of one part does not look as if we were asked to stop
        following = asyncio.create_task(_follow(stop, inner))
        try:
            await run_together([part.run(inner) for part in parts], inner, STOP_S)
        finally:
            following.cancel()
            with suppress(KeyError):
                del self.nodes[dgd]


async def _follow(stop: asyncio.Event, inner: asyncio.Event) -> None:
    await stop.wait()
    inner.set()


async def serve(
    settings: Settings,
    records: RecordBus,
    stop: asyncio.Event,
    *,
    clock: Clock,
    on_tick: Callable[[list[Record]], None] | None = None,
) -> None:
    """Run until `stop` is set. Raises ConfigError for settings that cannot be used, BusError for a bus that cannot."""
    await Service(settings, records, clock, on_tick).run(stop)


def _sources(settings: Settings, records: RecordBus, clock: Clock) -> list[Any]:
    edges = settings.edges
    parts: list[Any] = []
    if edges.sources.dynamo_fpm is not None:
        parts.append(_fpm_source(edges.sources.dynamo_fpm, settings, records, clock))
    if edges.sources.frontend is not None:
        parts.append(_frontend_source(edges.sources.frontend, settings, records, clock))
    if edges.sources.inventory is not None:
        parts.append(DeclaredInventory(records, edges.dgd, edges.sources.inventory, clock=clock.now))
    return parts


def _fpm_source(s: DynamoFpmSettings, settings: Settings, records: RecordBus, clock: Clock) -> DynamoFpmSource:
    dgd, mode, namespace = settings.edges.dgd, settings.planner.mode, settings.dynamo_namespace
    if s.url is not None:
        servers: tuple[str, ...] = (s.url,)
        connect: dict[str, Any] = {}
    elif isinstance(records.bus, NatsBus):
        servers, connect = records.bus.options.servers, client_options(records.bus)
    else:
        raise ConfigError("sources.dynamo_fpm.url is needed: the bus is no NATS server whose address could be used")
    options = DynamoFpmOptions(
        servers=servers,
        routes=(Route(namespace, dgd, s.components or COMPONENTS[mode]),),
        namespace=namespace,
        flush_s=s.flush_seconds,
        connect=connect,
    )
    return DynamoFpmSource(options, records.publish_many, clock.now)


def client_options(bus: NatsBus) -> dict[str, Any]:
    """nats-py's arguments for another connection as the same user."""
    o = bus.options
    given: dict[str, Any] = {"user": o.user, "password": o.password, "token": o.token, "tls": o.ssl_context()}
    if o.credentials is not None:
        given["user_credentials"] = str(o.credentials)
    if o.nkey_seed is not None:
        given["nkeys_seed"] = str(o.nkey_seed)
    return {name: value for name, value in given.items() if value is not None}


def _frontend_source(s: FrontendSettings, settings: Settings, records: RecordBus, clock: Clock) -> FrontendSource:
    options = FrontendOptions(
        dgd=settings.edges.dgd,
        urls=tuple(s.urls),
        selector=Selector(model=s.model),
        interval_s=s.interval_seconds,
        timeout_s=min(s.timeout_seconds, 0.9 * s.interval_seconds),
    )
    speed = clock.speed if isinstance(clock, ScaledClock) else 1.0
    return FrontendSource(options, records.publish_many, clock.now, speed=speed)
