"""The cluster in real time, at speeds that make a simulated minute a fraction of a second."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from headrace.connectors.simulator.clock import SimClock
from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.fpm_sink import EventPlaneSink
from headrace.connectors.simulator.live import LiveCluster
from headrace.connectors.simulator.metrics_server import MetricsServer
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.errors import ConfigError
from headrace.schemas.inventory import WorkerInventory

Config = Callable[..., SimulatorConfig]
Traces = Callable[..., Trace]

ROWS = [(i * 0.1, 100 + i, 10) for i in range(50)]


class Plane:
    """What a bus would get."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.inventories: list[WorkerInventory] = []

    async def publish(self, subject: str, payload: bytes) -> None:
        self.messages.append((subject, payload))

    async def publish_inventory(self, record: WorkerInventory) -> None:
        self.inventories.append(record)


async def run_through(live: LiveCluster, plane: Plane) -> None:
    await live.run(plane.publish, plane.publish_inventory, asyncio.Event(), until_drained=True)


def test_a_clock_stands_until_it_is_started_and_then_runs_at_its_speed() -> None:
    wall = iter([100.0, 100.0, 102.5])
    clock = SimClock(1000.0, 30.0, wall=lambda: next(wall))
    assert clock.now() == 1000.0
    clock.start()
    clock.start()
    assert clock.now() == 1000.0
    assert clock.now() == 1075.0


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_clock_without_a_sensible_speed_is_refused(speed: float) -> None:
    with pytest.raises(ConfigError, match="speed"):
        SimClock(0.0, speed)


async def test_a_live_run_publishes_the_same_messages_as_a_virtual_one(disagg: Config, trace: Traces) -> None:
    live, plane = LiveCluster(disagg(), trace(*ROWS), speed=50.0, seed=5), Plane()
    await run_through(live, plane)
    sink = EventPlaneSink(disagg())
    Cluster(disagg(), trace(*ROWS), 5, sink).run_until(live.cluster.now)
    assert plane.messages == sink.take()
    assert live.published == len(plane.messages) > 100


async def test_a_live_run_follows_a_clock_that_is_given(disagg: Config, trace: Traces) -> None:
    """Several processes share one clock: time is what it says, not what passes here."""
    at = iter([0.0, *[2.0] * 3, *[100.0] * 100])
    live, plane = LiveCluster(disagg(origin_s=1000.0), trace(*ROWS), now=lambda: 1000.0 + next(at)), Plane()
    await run_through(live, plane)
    assert live.cluster.now == 100.0
    assert live.lag_s == 0.0


async def test_inventory_goes_out_at_first_and_on_every_change(disagg: Config, trace: Traces) -> None:
    live, plane, stop = LiveCluster(disagg(startup_s=30.0), trace(*ROWS), speed=50.0), Plane(), asyncio.Event()
    task = asyncio.create_task(live.run(plane.publish, plane.publish_inventory, stop))
    assert await live.apply({"decode": 3})
    stop.set()
    await task
    seen = [(i.roles["decode"].starting, i.roles["decode"].ready) for i in plane.inventories]
    assert seen[-1] == (0, 3)
    assert (2, 1) in seen


async def test_applied_is_told_when_the_workers_are_there(disagg: Config, trace: Traces) -> None:
    live, plane, stop = LiveCluster(disagg(startup_s=10.0), trace(*ROWS), speed=50.0), Plane(), asyncio.Event()
    task = asyncio.create_task(live.run(plane.publish, plane.publish_inventory, stop))
    assert await live.apply({"decode": 2, "prefill": 1})
    assert live.cluster.now >= 10.0
    assert live.cluster.counts()["decode"].ready == 2
    assert await live.apply({"decode": 2})  # already so
    stop.set()
    await task


async def test_an_overtaken_request_is_told_that_it_will_not_be_applied(disagg: Config, trace: Traces) -> None:
    live, plane, stop = LiveCluster(disagg(startup_s=1e6), trace(*ROWS), speed=50.0), Plane(), asyncio.Event()
    task = asyncio.create_task(live.run(plane.publish, plane.publish_inventory, stop))
    first = asyncio.create_task(live.apply({"decode": 2}))
    await asyncio.sleep(0)
    assert await live.apply({"decode": 1})
    assert not await first
    stop.set()
    await task


async def test_the_end_of_a_run_leaves_nobody_waiting(disagg: Config, trace: Traces) -> None:
    live, plane, stop = LiveCluster(disagg(startup_s=1e6), trace(*ROWS), speed=50.0), Plane(), asyncio.Event()
    task = asyncio.create_task(live.run(plane.publish, plane.publish_inventory, stop))
    waiting = asyncio.create_task(live.apply({"decode": 2}))
    await asyncio.sleep(0)
    stop.set()
    await task
    assert not await waiting


async def test_impossible_targets_are_refused_at_once(disagg: Config, trace: Traces) -> None:
    with pytest.raises(ConfigError, match="agg"):
        await LiveCluster(disagg(), trace(*ROWS)).apply({"agg": 1})


async def test_a_failing_publisher_ends_the_run_and_wakes_the_waiting(disagg: Config, trace: Traces) -> None:
    live, plane = LiveCluster(disagg(startup_s=1e6), trace(*ROWS), speed=50.0), Plane()

    async def broken(subject: str, payload: bytes) -> None:
        raise ConnectionError("the bus is gone")

    waiting = asyncio.create_task(live.apply({"decode": 2}))
    with pytest.raises(ConnectionError):
        await live.run(broken, plane.publish_inventory, asyncio.Event())
    assert not await waiting


async def test_the_frontend_can_be_scraped(disagg: Config, trace: Traces) -> None:
    live, plane = LiveCluster(disagg(), trace(*ROWS), speed=50.0), Plane()
    await run_through(live, plane)
    async with MetricsServer(live.metrics) as server, httpx.AsyncClient() as client:
        answer = await client.get(server.url)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'dynamo_frontend_output_sequence_tokens_count{model="simulated"} 50\n' in answer.text
        assert (await client.head(server.url)).text == ""
        assert (await client.get(server.url.replace("/metrics", "/"))).status_code == 404
        assert (await client.post(server.url)).status_code == 405


async def test_a_silent_or_rude_client_does_not_stop_the_server(disagg: Config, trace: Traces) -> None:
    live = LiveCluster(disagg(), trace(*ROWS))
    async with MetricsServer(live.metrics) as server, httpx.AsyncClient() as client:
        host, port = httpx.URL(server.url).host, httpx.URL(server.url).port
        _, silent = await asyncio.open_connection(host, port)
        reader, rude = await asyncio.open_connection(host, port)
        rude.write(b"x" * 100_000)
        assert await reader.read() == b""
        assert (await client.get(server.url)).status_code == 200
        silent.close()
        rude.close()


async def test_a_port_that_is_taken_is_named() -> None:
    async with MetricsServer(lambda: "") as first:
        port = httpx.URL(first.url).port
        assert port is not None
        with pytest.raises(ConfigError, match=str(port)):
            await MetricsServer(lambda: "", port=port).__aenter__()
