"""`headrace simulate --live`: a simulated deployment on the configured bus, until stopped."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.connectors.simulator.live import LiveCluster
from headrace.schemas.streams import STREAMS
from headrace.streams.cli.connect import Client, open_bus, run_until_stopped
from headrace.streams.cli.run_service import clock_of, logs
from headrace.streams.live import LiveOptions, run_live
from headrace.streams.settings import Settings, load
from headrace.streams.simulation import SimulationSettings, cluster_config, simulation_settings, trace_of


@dataclass(frozen=True, slots=True)
class Page:
    """Where the frontend's `/metrics` listens; port 0 = any free one."""

    address: str
    port: int


def run_live_command(
    config_path: str | None, overrides: Mapping[str, Any], flags: Mapping[str, Any], page: Page, *, follow: bool
) -> None:
    """`follow`: the cluster is its own executor."""
    logs()
    settings = load(config_path, overrides=overrides)
    chosen = simulation_settings(settings.edges.simulator, **flags)
    fpm = settings.edges.sources.dynamo_fpm
    plane = None if fpm is None else fpm.url
    options = LiveOptions(settings.edges.bus.prefix, page.address, page.port, follow=follow, plane=plane)
    run_until_stopped(lambda stop: _run(settings, chosen, options, stop))


async def _run(settings: Settings, chosen: SimulationSettings, options: LiveOptions, stop: asyncio.Event) -> None:
    """The trace begins now, on the clock that the planner's configuration shares; after it the workers idle on."""
    clock = clock_of(settings.edges.clock)
    config = cluster_config(chosen, settings, origin_s=clock.now())
    live = LiveCluster(config, trace_of(chosen), speed=clock.speed, seed=chosen.seed, now=clock.now)
    async with open_bus(settings, Client("simulator", clock=clock.now)) as records:
        await records.bus.ensure(STREAMS.values())
        await run_live(live, records, options, stop)
