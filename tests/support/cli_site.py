"""A folder with a configuration, and `headrace` commands that run there as processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headrace.connectors.bus.factory import open_bus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.streams import STREAMS, Stream

DGD = "ml/llama"
PATIENCE_S = 60.0
SPEED = 20.0
LOAD = {  # more than one worker of each role can carry
    "shape": "sine",
    "duration_s": 3600,
    "requests_per_s": 12,
    "peak_requests_per_s": 16,
    "period_s": 600,
    "isl_mean": 2000,
    "osl_mean": 300,
}


def live_config(**more: Any) -> dict[str, Any]:
    """A planner and a deployment that is too small for its load, on one clock that runs fast."""
    wall = time.time()
    return {
        "dgd": DGD,
        "optimization_target": "sla",
        "enable_load_scaling": True,
        "ttft_ms": 800,
        "itl_ms": 15,
        "throughput_adjustment_interval_seconds": 60,
        "load_adjustment_interval_seconds": 5,
        "max_gpu_budget": 32,
        "capacity_policy": "reference",  # one replica at a time: there is always a next decision
        "clock": {"speed": SPEED, "origin": float(int(wall)), "wall_origin": wall},
        "sources": {"dynamo_fpm": {"namespace": "dynamo"}},
        "simulator": {"preset": "8b", "fleet": {"prefill": 1, "decode": 1}, "startup_s": 10, "load": LOAD},
        **more,
    }


@dataclass(slots=True)
class Site:
    """What is started here is ended by :meth:`close`."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def write(self, config: dict[str, Any]) -> Path:
        path = self.folder / "planner.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "PLANNER_"))}
        return kept | {"COLUMNS": "200"} | self.env

    def run(self, *args: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """A command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "headrace", *args],
            cwd=self.folder,
            env=self.environment | env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def start(self, name: str, *args: str, **env: str) -> "subprocess.Popen[str]":
        """A command that goes on; what it says is in NAME.log."""
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", *args],
                cwd=self.folder,
                env=self.environment | env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        self.started.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def tracebacks(self) -> list[str]:
        """The logs that hold one."""
        logs = [path.read_text() for path in self.folder.glob("*.log")]
        return [log for log in logs if "Traceback" in log]

    def says(self, name: str, words: str) -> None:
        """Wait until a log holds the words."""
        self.until(lambda: words in self.log(name), lambda: self.log(name))

    def until(self, condition: Callable[[], object], seen: Callable[[], object]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up, seen()
            time.sleep(0.05)

    def stop(self, process: "subprocess.Popen[str]", number: signal.Signals = signal.SIGTERM) -> int:
        """End a command in peace; its exit code."""
        process.send_signal(number)
        return process.wait(PATIENCE_S)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()


@asynccontextmanager
async def bus_at(url: str, prefix: str = "headrace") -> AsyncIterator[RecordBus]:
    async with open_bus(url, prefix) as bus:
        await bus.ensure(STREAMS.values())
        yield RecordBus(bus, "test", time.time)


async def read_all(records: RecordBus, stream: Stream, dgd: str = DGD) -> list[Any]:
    """Everything that a stream keeps for the DGD."""
    last = await records.bus.last(stream, dgd)
    found: list[Any] = []
    reader = await records.read(stream, dgd, after=0)
    while last is not None and reader.position < last.position:
        found += [record for record, _ in await reader.next(timeout=10)]
    await reader.close()
    return found


async def until_there(
    records: RecordBus, stream: Stream, enough: Callable[[list[Any]], bool], dgd: str = DGD
) -> list[Any]:
    """Read a stream from its beginning until it holds enough."""
    found: list[Any] = []
    reader = await records.read(stream, dgd, after=0)
    async with asyncio.timeout(PATIENCE_S):
        while not enough(found):
            found += [record for record, _ in await reader.next(timeout=1.0)]
    await reader.close()
    return found
