"""A whole simulated deployment on a real bus, in the test's process: cluster, sources, executor, but no planner."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.virtual import VirtualExecutor, VirtualOptions
from headrace.connectors.simulator.live import LiveCluster
from headrace.connectors.simulator.loads import LoadSpec, generate
from headrace.connectors.simulator.metrics_server import MetricsServer
from headrace.connectors.sources.dynamo_fpm import DynamoFpmOptions, DynamoFpmSource
from headrace.connectors.sources.fpm_packer import Route
from headrace.connectors.sources.frontend_metrics import FrontendOptions, FrontendSource
from headrace.schemas.base import Role
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.streams import STREAMS, Stream
from headrace.streams.live import EventPlane, LocalScaler, core_client
from headrace.streams.runtime.clock import ScaledClock
from headrace.streams.settings import settings
from headrace.streams.simulation import SimulationSettings, cluster_config

DGD = "fault/llama"
PLANNER = {
    "mode": "disagg",
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "ttft_ms": 800,
    "itl_ms": 22,
    "throughput_adjustment_interval_seconds": 30,
    "load_adjustment_interval_seconds": 5,
    "max_gpu_budget": 96,
    "ack_timeout_seconds": 600,
    "shards": {"lease_seconds": 0.5},
}
LOAD = LoadSpec(
    shape="sine", duration_s=3600, requests_per_s=2, peak_requests_per_s=20, period_s=240, isl_mean=2000, osl_mean=300
)


class RecordingScaler(LocalScaler):
    """Remembers every call to scale, with the decision that the executor was acting on."""

    def __init__(self, live: LiveCluster) -> None:
        super().__init__(live)
        self.client: DecisionClient | None = None
        self.calls: list[tuple[int, int]] = []  # (epoch, id)

    async def set_targets(self, targets: Mapping[Role, int]) -> None:
        assert self.client is not None
        newest = self.client.newest
        assert newest is not None
        assert newest.targets == targets, "the executor acts on a decision that is not the newest it has seen"
        self.calls.append((newest.epoch, newest.decision_id))
        await super().set_targets(targets)


@dataclass(slots=True)
class Deployment:
    """`config` is the planner's configuration file, for `headrace run`."""

    server: EmbeddedNats
    records: RecordBus
    clock: ScaledClock
    live: LiveCluster
    scaler: RecordingScaler
    source: DynamoFpmSource
    config: Path
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    async def read_pairs(self, stream: Stream) -> list[tuple[Any, int]]:
        """Everything that the stream keeps for the DGD, with its positions."""
        last = await self.records.bus.last(stream, DGD)
        found: list[tuple[Any, int]] = []
        reader = await self.records.read(stream, DGD, after=0)
        while last is not None and reader.position < last.position:
            found += [(record, message.position) for record, message in await reader.next(timeout=10)]
        await reader.close()
        return found

    async def read_all(self, stream: Stream) -> list[Any]:
        return [record for record, _ in await self.read_pairs(stream)]


@asynccontextmanager
async def deployment(folder: Path, *, speed: float, load: LoadSpec = LOAD) -> AsyncIterator[Deployment]:
    """A cluster that runs `speed` times as fast as the wall, on a NATS server of its own."""
    server = EmbeddedNats(folder / "nats")
    server.start()
    wall = time.time()
    clock = ScaledClock(speed, float(int(wall)), wall)
    found = settings({**PLANNER, "dgd": DGD, "sources": {"dynamo_fpm": {"namespace": "fault"}}})
    simulated = SimulationSettings(preset="70b", fleet={"prefill": 1, "decode": 1}, startup_s=20)
    config = cluster_config(simulated, found, origin_s=clock.origin)
    live = LiveCluster(config, generate(load), speed=speed, now=clock.now)
    bus = NatsBus(server.url)
    await bus.open()
    await bus.ensure(STREAMS.values())
    records = RecordBus(bus, "test", clock.now)
    raw = {**PLANNER, "dgd": DGD, "bus": server.url,
           "clock": {"speed": speed, "origin": clock.origin, "wall_origin": clock.wall_origin}}  # fmt: skip
    path = folder / "planner.yaml"
    path.write_text(yaml.safe_dump(raw))
    source = DynamoFpmSource(
        DynamoFpmOptions(servers=(server.url,), routes=(Route("fault", DGD),), namespace="fault"),
        records.publish_many,
        clock.now,
    )
    scaler = RecordingScaler(live)
    client = DecisionClient(records, DGD, "test")
    scaler.client = client
    deployed = Deployment(server, records, clock, live, scaler, source, path)
    stop = asyncio.Event()
    core = await core_client(records)

    async def inventory(record: WorkerInventory) -> None:
        await records.publish(record)

    async with MetricsServer(live.metrics) as page:
        frontend = FrontendSource(
            FrontendOptions(dgd=DGD, urls=(page.url,), interval_s=0.5 * speed, timeout_s=4.0),
            records.publish_many,
            clock.now,
            speed=speed,
        )
        executor = VirtualExecutor(client, scaler, VirtualOptions(poll_s=0.05))
        runs = (
            source.run(stop),
            frontend.run(stop),
            executor.run(stop),
            live.run(EventPlane(core).publish, inventory, stop),
        )
        deployed.tasks = [asyncio.create_task(run) for run in runs]
        try:
            yield deployed
        finally:
            stop.set()
            outcomes = await asyncio.gather(*deployed.tasks, return_exceptions=True)
            await core.close()
            await bus.close()
            server.stop()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
