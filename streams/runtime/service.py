"""Everything that `headrace run` runs for one DGD: the planner's node, its sources, an executor if one is asked for."""

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.sources.dynamo_fpm import DynamoFpmOptions, DynamoFpmSource
from headrace.connectors.sources.fpm_packer import COMPONENTS, Route
from headrace.connectors.sources.frontend_metrics import FrontendOptions, FrontendSource
from headrace.connectors.sources.frontend_page import Selector
from headrace.connectors.sources.inventory import DeclaredInventory
from headrace.schemas.base import Record
from headrace.schemas.errors import ConfigError
from headrace.streams.runtime.clock import Clock, ScaledClock
from headrace.streams.runtime.executors import executor_of
from headrace.streams.runtime.groups import run_together
from headrace.streams.runtime.node import NodeOptions, PlannerNode
from headrace.streams.runtime.profiles import ProfilePublisher
from headrace.streams.settings import DynamoFpmSettings, FrontendSettings, Settings

STOP_S = 6.0  # for what is under way when we are stopped; a bus that is away would hold it for longer


async def serve(
    settings: Settings,
    records: RecordBus,
    stop: asyncio.Event,
    *,
    clock: Clock,
    on_tick: Callable[[list[Record]], None] | None = None,
) -> None:
    """Run until `stop` is set. Raises Fenced when another process has taken the DGD over; the rest has stopped then."""
    edges = settings.edges
    node = PlannerNode(records, settings.planner, edges.dgd, clock, NodeOptions(on_tick=on_tick))
    profiles = ProfilePublisher(records, edges.dgd, settings.planner, clock)
    parts: list[Any] = [node, profiles, *_sources(settings, records, clock)]
    if edges.executor is not None:
        parts.append(executor_of(edges.executor, records, edges.dgd))
    await run_together([part.run(stop) for part in parts], stop, STOP_S)


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
