"""The simulated deployment of the demonstration, as a process: `python -m headrace.streams.demo.simulator CONFIG`.

When the trace is through it prints one line of JSON: what came of every request.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from headrace.connectors.simulator.live import LiveCluster
from headrace.connectors.simulator.report import SimulationReport, summarise
from headrace.streams.cli.connect import Client, open_bus, run_until_stopped
from headrace.streams.cli.run_service import clock_of, logs
from headrace.streams.live import LiveOptions, run_live
from headrace.streams.settings import Settings, load
from headrace.streams.simulation import cluster_config, simulation_settings, trace_of


class Progress(msgspec.Struct, frozen=True):
    """What the simulator says while it runs, a line at a time."""

    at_s: float
    finished: int
    arrived: int
    gpu_hours: float
    published: int
    lag_s: float


async def simulate(settings: Settings, metrics_port: int, stop: asyncio.Event) -> SimulationReport:
    """Run the whole trace on the bus of the settings."""
    chosen = simulation_settings(settings.edges.simulator)
    clock = clock_of(settings.edges.clock)
    config = cluster_config(chosen, settings, origin_s=clock.origin)
    live = LiveCluster(config, trace_of(chosen), speed=clock.speed, seed=chosen.seed, now=clock.now)
    async with open_bus(settings, Client("simulator", clock=clock.now)) as records:
        await clock.sleep_until(clock.origin, stop)
        options = LiveOptions(settings.edges.bus.prefix, metrics_port=metrics_port, follow=False, until_drained=True)
        async with asyncio.TaskGroup() as group:
            talk = group.create_task(_talk(live))
            await run_live(live, records, options, stop)
            talk.cancel()
    return summarise(live.cluster, [], decisions=0, fpms=live.published, bound=None)


async def _talk(live: LiveCluster) -> None:
    while True:
        await asyncio.sleep(0.5)
        cluster = live.cluster
        progress = Progress(
            at_s=cluster.now,
            finished=len(cluster.requests) - cluster.unfinished,
            arrived=cluster.frontend.started,
            gpu_hours=cluster.gpu_hours(),
            published=live.published,
            lag_s=live.lag_s,
        )
        _print(progress)


def _print(value: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    path, port = sys.argv[1:3]
    logs()
    settings = load(str(Path(path)))
    _print(run_until_stopped(lambda stop: simulate(settings, int(port), stop)))


if __name__ == "__main__":
    main()
