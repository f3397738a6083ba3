"""A planner as its own process on a server of its own, for tests that do their worst to it."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from nats_support import nats_server

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import RecordError
from headrace.schemas.streams import DEADLETTERS, STREAMS, TICKS, Stream
from headrace.schemas.tick_report import TickReport

DGD = "ml/llama"
MiB = 1024 * 1024
PATIENCE_S = 30.0
CONFIG: dict[str, Any] = {
    "dgd": DGD,
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "load_predictor": "constant",
    "load_adjustment_interval_seconds": 0.5,
    "throughput_adjustment_interval_seconds": 20,
    "max_gpu_budget": -1,
}


@dataclass(slots=True)
class Victim:
    """`headrace run`, and what it is attacked with."""

    server: EmbeddedNats
    process: "subprocess.Popen[bytes]"
    config: Path
    log: Path
    records: RecordBus = field(init=False)

    @property
    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def check(self) -> None:
        assert self.process.poll() is None, self.log.read_text()[-4000:]

    @asynccontextmanager
    async def bus(self) -> AsyncIterator["Victim"]:
        """A connection for the length of a block."""
        bus = NatsBus(self.server.url)
        await bus.open()
        await bus.ensure(STREAMS.values())
        self.records = RecordBus(bus, "test", time.time)
        try:
            yield self
        finally:
            await bus.close()

    async def put(self, stream: Stream, data: bytes) -> int:
        return await self.records.bus.publish(Outgoing(stream.name, DGD, data))

    async def report(self) -> TickReport:
        """The report of a tick that begins after this call."""
        now = time.time()
        while True:
            self.check()
            try:
                last = await self.records.last(TICKS, DGD)
            except RecordError:
                last = None
            if last is not None and isinstance(last[0], TickReport) and last[0].at > now:
                return last[0]
            await asyncio.sleep(0.05)

    async def took(self, stream: Stream, position: int) -> TickReport:
        """Wait for a tick that has read so far."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                report = await self.report()
                if report.positions.get(stream.name, 0) >= position:
                    return report

    async def letters(self, after: int = 0) -> list[DeadLetter]:
        """The DGD's dead letters behind a position."""
        return [record for record in await self.read(DEADLETTERS, after) if isinstance(record, DeadLetter)]

    async def read(self, stream: Stream, after: int = 0) -> list[Any]:
        last = await self.records.bus.last(stream, DGD)
        found: list[Any] = []
        reader = await self.records.read(stream, DGD, after=after)
        while last is not None and max(after, reader.position) < last.position:
            found += [record for record, _ in await reader.next(timeout=10)]
        await reader.close()
        return found

    async def end_of(self, stream: Stream) -> int:
        return (await self.records.bus.info(stream)).last_position

    def cli(self, *args: str) -> "subprocess.CompletedProcess[str]":
        """Another command on the same configuration."""
        argv = [sys.executable, "-m", "headrace", *args, "-c", str(self.config)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)


@contextmanager
def victim(folder: Path, server_config: str = "", **config: Any) -> Iterator[Victim]:
    """A planner that ends in peace when the block does, whatever was done to it."""
    with nats_server(folder / "nats", config=server_config) as server:
        path, log = folder / "planner.yaml", folder / "planner.log"
        path.write_text(yaml.safe_dump(CONFIG | {"bus": server.url} | config))
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "run", "-c", str(path)], stdout=out, stderr=out
            )
        try:
            yield Victim(server, process, path, log)
            assert process.poll() is None, log.read_text()[-4000:]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, log.read_text()[-4000:]
            assert "Traceback" not in log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
