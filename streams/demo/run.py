"""The demonstration: a bus, a simulated deployment, the planner and an executor as processes, and a live view."""

import asyncio
import tempfile
from asyncio.subprocess import Process
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.simulator.report import SimulationReport
from headrace.connectors.simulator.sweep import candidate_fleets
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.errors import HeadraceError
from headrace.schemas.streams import STREAMS
from headrace.streams.cli.connect import Client, open_bus
from headrace.streams.demo.config import SIMULATOR, speed_for, write
from headrace.streams.demo.processes import Processes, free_port
from headrace.streams.demo.simulator import Progress
from headrace.streams.demo.summary import comparison, table
from headrace.streams.demo.view import render
from headrace.streams.demo.watch import Watch, follow
from headrace.streams.fixed_fleets import fixed_fleets
from headrace.streams.runtime.groups import first_error
from headrace.streams.settings import Settings, load
from headrace.streams.simulation import cluster_config, simulation_settings, trace_of

FRAMES_PER_S = 4
PLAIN_EVERY_S = 10.0
SETTLE_S = 3.0  # for the last acks to come in
FLEETS = 10  # fixed ones to compare with


@dataclass(slots=True)
class Demo:
    """One run. `seconds` is how long the trace shall take; `overrides` go over the demonstration's configuration."""

    trace: str | None
    seconds: float
    overrides: dict[str, Any]
    console: Console
    watch: Watch = field(default_factory=Watch)
    progress: Progress | None = None
    report: SimulationReport | None = None

    async def run(self, stop: asyncio.Event) -> None:
        with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
            async with EmbeddedNats(Path(folder) / "nats") as server:
                await self._run(Path(folder), server.url, stop)

    async def _run(self, folder: Path, bus: str, stop: asyncio.Event) -> None:
        raw = dict(self.overrides)
        raw["simulator"] = {**SIMULATOR, **({"trace": self.trace} if self.trace else {}), **raw.get("simulator", {})}
        trace = trace_of(simulation_settings(raw["simulator"]))
        port = free_port()
        path = write(folder, raw, bus=bus, metrics_port=port, speed=speed_for(trace, self.seconds))
        settings = load(str(path))
        processes = Processes(folder)
        async with open_bus(settings, Client("demo")) as records:
            await records.bus.ensure(STREAMS.values())
            self.console.print(f"Bus on {bus}; watch it from another terminal: headrace decisions follow --bus {bus}")
            try:
                await processes.start("planner", "headrace", "run", "-c", str(path))
                await processes.start("executor", "headrace.streams.demo.executor", str(path))
                simulator = await processes.start(
                    "simulator", "headrace.streams.demo.simulator", str(path), str(port), talks=True
                )
                async with asyncio.TaskGroup() as group:
                    done = asyncio.Event()
                    group.create_task(follow(records, settings.edges.dgd, self.watch, done))
                    listening = group.create_task(self._listen(simulator))
                    await self._show(settings, trace, processes, stop)
                    done.set()
                    listening.cancel()
            except BaseExceptionGroup as e:
                raise first_error(e) from e
            finally:
                await processes.stop()
        if self.report is not None:
            await self._sum_up(settings, trace, stop)

    async def _listen(self, simulator: Process) -> None:
        """Progress lines, and at the end the report."""
        assert simulator.stdout is not None
        while (line := await simulator.stdout.readline()).endswith(b"\n"):
            try:
                self.progress = msgspec.json.decode(line, type=Progress)
            except msgspec.ValidationError:
                self.report = msgspec.json.decode(line, type=SimulationReport)
                return

    async def _show(self, settings: Settings, trace: Trace, processes: Processes, stop: asyncio.Event) -> None:
        """Frames until the trace is through; without a terminal a line now and then."""
        until = None
        planner = settings.planner
        loop = asyncio.get_running_loop()
        said_at = 0.0

        def frame() -> Any:
            sla = (planner.ttft_ms, planner.itl_ms)
            return render(self.watch, self.progress, title=trace.name, duration_s=trace.duration_s, sla=sla)

        picture = (
            Live(frame(), console=self.console, refresh_per_second=FRAMES_PER_S) if self.console.is_terminal else None
        )
        with picture or nullcontext():
            while not stop.is_set() and (until is None or loop.time() < until):
                if self.report is not None and until is None:
                    until = loop.time() + SETTLE_S
                processes.check()
                if picture is not None and self.report is None:  # afterwards the deployment is gone, and it would show
                    picture.update(frame())
                elif picture is None and loop.time() >= said_at + PLAIN_EVERY_S:
                    said_at = loop.time()
                    self.console.print(self._line(trace), highlight=False)
                await asyncio.sleep(1 / FRAMES_PER_S)
        if stop.is_set() and self.report is None:
            self.console.print("Stopped before the trace was through: no summary.")

    def _line(self, trace: Trace) -> str:
        p, tick = self.progress, self.watch.tick
        if p is None or tick is None:
            return "starting"
        roles = ", ".join(f"{role} {r.current} ({r.reason})" for role, r in sorted(tick.roles.items(), reverse=True))
        rate = tick.load.get("requests_per_s")
        load = "load unknown" if rate is None else f"{rate:.1f} requests/s"
        minutes = f"{p.at_s / 60:.1f} of {trace.duration_s / 60:.0f} min"
        return f"{minutes}: {load}; {roles}; {self.watch.issued} decisions, {self.watch.settled} settled"

    async def _sum_up(self, settings: Settings, trace: Trace, stop: asyncio.Event) -> None:
        assert self.report is not None
        config = cluster_config(simulation_settings(settings.edges.simulator), settings)

        def look(_: float) -> None:
            if stop.is_set():
                raise HeadraceError("stopped")

        try:
            with self.console.status("The same trace on fixed fleets ..."):
                fleets = await asyncio.to_thread(candidate_fleets, trace, config, limit=FLEETS)
                results = await asyncio.to_thread(fixed_fleets, trace, config, fleets, look)
        except HeadraceError as e:
            self.console.print(f"No fixed fleet to compare with: {e}")
            results = []
        compared = comparison(self.report, results)
        self.console.print(table(self.report, compared, issued=self.watch.issued, settled=self.watch.settled))
