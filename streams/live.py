"""A simulated deployment on a real bus: FPMs on Dynamo's subjects, `/metrics`, inventory, and scaling by request.

Whoever may scale it asks on a core NATS subject, as one asks an orchestrator; `follow` makes it its own executor.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.nats.subjects import Subjects
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.outcome import Refused
from headrace.connectors.executors.virtual import VirtualExecutor, VirtualOptions
from headrace.connectors.simulator.live import LiveCluster
from headrace.connectors.simulator.metrics_server import MetricsServer
from headrace.schemas.base import Role
from headrace.schemas.errors import BusError, ConfigError, HeadraceError, RecordError
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.streams import INVENTORY
from headrace.streams.runtime.groups import run_together
from headrace.streams.runtime.service import client_options

log = logging.getLogger("headrace.simulator")

POLL_S = 0.1
PATIENCE_S = 5.0
STOP_S = 2.0  # for what is under way when we are stopped


class ScaleRequest(msgspec.Struct, frozen=True):
    targets: dict[Role, int]


class ScaleReply(msgspec.Struct, frozen=True):
    ok: bool
    message: str = ""


def scale_subject(prefix: str, dgd: str) -> str:
    """Where a simulated deployment is asked for replicas."""
    return Subjects(prefix).subject("simulator", dgd)


def nats_of(records: RecordBus) -> NatsBus:
    """The NATS bus underneath. Raises ConfigError when it is another: Dynamo's engines publish on NATS."""
    if not isinstance(records.bus, NatsBus):
        raise ConfigError(
            "a live simulation needs NATS, on which Dynamo's engines publish: give an embedded or nats:// bus, or the "
            "engines' server in sources.dynamo_fpm.url"
        )
    return records.bus


async def core_client(records: RecordBus, plane: str | None = None) -> Client:
    """A plain connection to the engines' server, or to the bus's own; it reconnects for ever."""

    async def failed(error: Exception) -> None:
        log.debug("NATS: %s", error)  # it reconnects; what was lost meanwhile is counted

    client = Client()
    if plane is not None:
        await client.connect(servers=[plane], max_reconnect_attempts=-1, error_cb=failed)
        return client
    bus = nats_of(records)
    await client.connect(
        servers=list(bus.options.servers), max_reconnect_attempts=-1, error_cb=failed, **client_options(bus)
    )
    return client


@dataclass(frozen=True, slots=True)
class LiveOptions:
    prefix: str = "headrace"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    follow: bool = True  # carry out decisions itself
    until_drained: bool = False  # end with the trace
    plane: str | None = None  # the NATS server on which the engines publish; None: the bus's own


async def run_live(live: LiveCluster, records: RecordBus, options: LiveOptions, stop: asyncio.Event) -> None:
    """Run a live cluster on the bus until `stop`, or until its trace is through."""
    dgd = live.cluster.config.dgd

    async def scale(message: Msg) -> None:
        await message.respond(msgspec.json.encode(_scaled(live, message.data)))

    async def publish_inventory(inventory: WorkerInventory) -> None:
        try:
            await records.publish(inventory)
        except BusError as e:
            log.warning("%s: the inventory cannot be said, the next one will be: %s", dgd, e)

    client = await core_client(records, options.plane)
    engines = EventPlane(client)
    try:
        await client.subscribe(scale_subject(options.prefix, dgd), cb=scale)
        async with MetricsServer(live.metrics, options.metrics_host, options.metrics_port) as server:
            log.info("%s: /metrics on %s", dgd, server.url)
            parts = [live.run(engines.publish, publish_inventory, stop, until_drained=options.until_drained)]
            if options.follow:
                parts.append(executor(LocalScaler(live), records, dgd, "simulator").run(stop))
            await run_together(parts, stop, STOP_S)
    finally:
        await client.close()


class EventPlane:
    """Publishes as engines do: at most once. What they say while the server is away is gone, and counted."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.lost = 0

    async def publish(self, subject: str, payload: bytes) -> None:
        if not self._client.is_connected:
            self.lost += 1
            return
        try:
            await self._client.publish(subject, payload)
        except errors.Error:
            self.lost += 1


def _scaled(live: LiveCluster, data: bytes) -> ScaleReply:
    try:
        live.cluster.set_targets(msgspec.json.decode(data, type=ScaleRequest).targets)
    except (msgspec.DecodeError, HeadraceError) as e:
        return ScaleReply(ok=False, message=str(e))
    return ScaleReply(ok=True)


def executor(scaler: "LocalScaler | BusScaler", records: RecordBus, dgd: str, name: str) -> VirtualExecutor:
    """The virtual executor over a simulated deployment."""
    return VirtualExecutor(DecisionClient(records, dgd, name), scaler, VirtualOptions(poll_s=POLL_S))


class LocalScaler:
    """The cluster in this process, as an orchestrator."""

    def __init__(self, live: LiveCluster) -> None:
        self._live = live

    async def set_targets(self, targets: Mapping[Role, int]) -> None:
        try:
            self._live.cluster.set_targets(targets)
        except ConfigError as e:
            raise Refused(str(e)) from e

    async def counts(self) -> Mapping[Role, int]:
        return {role: c.ready + c.draining for role, c in self._live.cluster.counts().items()}


class BusScaler:
    """A cluster in another process: asked on its subject, watched on the inventory stream."""

    def __init__(self, records: RecordBus, client: Client, subject: str, dgd: str) -> None:
        self._records = records
        self._client = client
        self._subject = subject
        self._dgd = dgd

    async def set_targets(self, targets: Mapping[Role, int]) -> None:
        request = msgspec.json.encode(ScaleRequest(targets=dict(targets)))
        answer = await self._client.request(self._subject, request, timeout=PATIENCE_S)
        reply = msgspec.json.decode(answer.data, type=ScaleReply)
        if not reply.ok:
            raise Refused(reply.message)

    async def counts(self) -> Mapping[Role, int]:
        """None of them while nobody says, or nobody can read what is said."""
        try:
            last = await self._records.last(INVENTORY, self._dgd)
        except RecordError:
            return {}
        if last is None or not isinstance(last[0], WorkerInventory):
            return {}
        return {role: i.ready + i.draining for role, i in last[0].roles.items()}
