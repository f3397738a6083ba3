"""Many DGDs on a NATS server, planned by processes that the test ends: their inputs, their executor, and the audit.

Everything is counted where it is made: FPMs and windows by the feeder, calls to scale by the executor. An executor of
its own kind stands in for all DGDs: it follows the whole streams through one `DecisionGate` for each DGD, looks once
more before it acts, and acknowledges.
"""

import asyncio
import random
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import world
import yaml
from audit import Audit, audit
from msgspec.structs import replace

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.executors.gate import DecisionGate, place
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import ACKS, DECISIONS, FPM, STATE, STREAMS, TICKS, TRAFFIC, Stream
from headrace.streams.planner import Planner
from headrace.streams.runtime.clock import ScaledClock
from headrace.streams.runtime.recovery import _snapshot

PLANNER: dict[str, Any] = {
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "load_adjustment_interval_seconds": 5,
    "throughput_adjustment_interval_seconds": 60,
    "max_gpu_budget": -1,
    "rejected_retry_seconds": 1,
}
FEED_S = 5.0  # simulated: between two rounds of inputs for each DGD
MOST_REPLICAS = 9


@dataclass(slots=True)
class Dgd:
    """One DGD as the test knows it."""

    name: str
    gate: DecisionGate
    replicas: dict[str, int] = field(default_factory=lambda: {"prefill": 1, "decode": 1})
    calls: list[tuple[int, int]] = field(default_factory=list)  # (epoch, id) of each call to scale
    rounds: int = 0
    fpms: int = 0
    windows: int = 0


class Fleet:
    """Feeds and executes for `dgds` DGDs; `start` runs a planner process."""

    def __init__(self, server: EmbeddedNats, folder: Path, dgds: int, speed: float, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.rng = random.Random(seed)
        wall = time.time()
        self.clock = ScaledClock(speed, float(int(wall)), wall)
        self.dgds = {name: Dgd(name, DecisionGate(name)) for name in (f"fleet/d{i}" for i in range(dgds))}
        self.records = RecordBus(NatsBus(server.url), "test", self.clock.now)
        self.working: set[asyncio.Task[None]] = set()
        self.feeding = asyncio.Event()
        self.fed = asyncio.Event()
        self.started = 0
        self.log = folder / "planners.log"
        self.refused_calls = 0  # decisions that were not newest any more right before acting
        self.slow_s = 0.0  # how long scaling takes

    def configuration(self, name: str, url: str | None = None, **more: Any) -> Path:
        c = self.clock
        raw = {**PLANNER, "dgds": ["fleet/*"], "bus": url or self.server.url,
               "clock": {"speed": c.speed, "origin": c.origin, "wall_origin": c.wall_origin}, **more}  # fmt: skip
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(raw))
        return path

    async def start(self, config: Path) -> Process:
        self.started += 1
        with self.log.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headrace", "run", "-c", str(config), stdin=DEVNULL, stdout=out, stderr=out
            )

    # -- inputs -----------------------------------------------------------------------------------------------------

    async def feed(self) -> None:
        """Each DGD gets inputs every few seconds; all that is published here is stored, whatever the server does."""
        self.feeding.set()
        while self.feeding.is_set():
            began = self.clock.now()
            for dgd in self.dgds.values():
                await self._insist(self._round(dgd))
            left_s = (began + FEED_S - self.clock.now()) / self.clock.speed
            await asyncio.sleep(max(0.0, left_s))
        self.fed.set()

    def _round(self, dgd: Dgd) -> list[Record]:
        """FPMs of two workers, a traffic window, the inventory, and now and then a wish; some of it twice."""
        at, n = self.clock.now(), dgd.rounds
        dgd.rounds += 1
        fpms = [world.fpm("1", n, wall=0.01, prefill=(1, 500)), world.fpm("11", n, wall=0.01, decode=(4, 3000))]
        batches = [world.batch(role, at, f, dgd=dgd.name) for role, f in zip(("prefill", "decode"), fpms, strict=True)]
        window = replace(world.window(at - FEED_S, at, 50), dgd=dgd.name, window_id=f"w{n}")
        dgd.fpms += len(batches)
        dgd.windows += 1
        found: list[Record] = [*batches, window, self._inventory(dgd, at)]
        if n % 3 == self.rng.randrange(3):
            found.append(self._wish(dgd, at))
        if n % 4 == 0:  # delivered again, as a source that restarts would: another message, the same FPMs and window
            found += [replace(batches[0], source="again"), replace(window, source="again")]
        return found

    def _inventory(self, dgd: Dgd, at: float) -> Record:
        return replace(world.inventory(at, 1, None, **dgd.replicas), dgd=dgd.name)

    def _wish(self, dgd: Dgd, at: float) -> Record:
        proposal = world.proposal("SET", at=at, until=at + 60.0, proposal_id=f"p{dgd.rounds}", priority=5)
        targets = {role: self.rng.randint(1, MOST_REPLICAS) for role in ("prefill", "decode")}
        return replace(proposal, dgd=dgd.name, targets=targets)

    async def _insist(self, records: list[Record]) -> None:
        while True:
            try:
                return await self.records.publish_many(records)
            except BusError:
                await asyncio.sleep(0.2)

    # -- the executor -----------------------------------------------------------------------------------------------

    async def execute(self) -> None:
        """Carry decisions out as docs/decision-protocol.md says, for all DGDs."""
        reader = await self.records.read(DECISIONS, after=0)
        while True:
            try:
                found = await reader.next()
            except BusError:
                continue
            for decision, _ in found:
                assert isinstance(decision, Decision)
                dgd = self.dgds[decision.dgd]
                dgd.gate.offer(decision)
                ready = dgd.gate.take(self.clock.now())
                if ready is not None:
                    task = asyncio.create_task(self._carry_out(dgd, ready))
                    self.working.add(task)
                    task.add_done_callback(self.working.discard)

    async def _carry_out(self, dgd: Dgd, decision: Decision) -> None:
        await self._ack(decision, AckStatus.ACCEPTED)
        await asyncio.sleep(self.rng.uniform(0.0, self.slow_s))
        while True:
            try:
                last = await self.records.last(DECISIONS, dgd.name)
                break
            except BusError:
                await asyncio.sleep(0.2)
        if last is not None:
            assert isinstance(last[0], Decision)
            dgd.gate.offer(last[0])
        if dgd.gate.refusal(decision, self.clock.now()) is not None or dgd.gate.newest != decision:
            self.refused_calls += 1
            return
        dgd.calls.append(place(decision))
        dgd.replicas |= decision.targets
        await self._insist([self._inventory(dgd, self.clock.now())])
        await self._ack(decision, AckStatus.APPLIED)

    async def _ack(self, decision: Decision, status: AckStatus) -> None:
        ack = DecisionAck(
            dgd=decision.dgd, epoch=decision.epoch, decision_id=decision.decision_id, status=status, executor="test",
            at=self.clock.now(), counts=decision.targets,
        )  # fmt: skip
        self.dgds[decision.dgd].gate.settle(ack)
        await self._insist([ack])

    # -- what is on the log -------------------------------------------------------------------------------------------

    async def all_of(self, stream: Stream) -> dict[str, list[Any]]:
        """Everything that a stream keeps, by DGD."""
        end = (await self.records.bus.info(stream)).last_position
        found: dict[str, list[Any]] = {name: [] for name in self.dgds}
        reader = await self.records.read(stream, after=0)
        while reader.position < end:
            messages = await reader.next(timeout=10)
            assert messages, f"{stream.name} cannot be read to {end}"
            for record, _ in messages:
                found[record.dgd].append(record)
        await reader.close()
        return found

    async def settled(self, patience_s: float = 60.0) -> None:
        """Stop feeding, and wait until a snapshot of each DGD has everything."""
        self.feeding.clear()
        async with asyncio.timeout(patience_s):
            await self.fed.wait()
            for name in self.dgds:
                while not await self._has_all(name):  # noqa: ASYNC110 - it is the bus that is asked
                    await asyncio.sleep(0.2)

    async def _has_all(self, name: str) -> bool:
        state = await self.records.last(STATE, name)
        assert state is not None
        assert isinstance(state[0], PlannerState)
        last = {stream.name: await self.records.bus.last(stream, name) for stream in (FPM, TRAFFIC)}
        return all(m is None or m.position <= state[0].positions.get(s, 0) for s, m in last.items())

    async def ticked(self, dgds: int, since: float, patience_s: float = 60.0) -> None:
        """Wait until so many DGDs have had a tick stored after `since` (the broker's time)."""
        async with asyncio.timeout(patience_s):
            while True:
                last = [await self.records.bus.last(TICKS, name) for name in self.dgds]
                if sum(m is not None and m.stored_at > since for m in last) >= dgds:
                    return
                await asyncio.sleep(0.2)


@dataclass(slots=True)
class Findings:
    """The sums over all DGDs; `wrong` names what may not be."""

    audits: dict[str, Audit]
    calls: int
    fpms: tuple[int, int]  # stored by the feeder, counted by planners
    windows: tuple[int, int]
    repeated: tuple[int, int]  # FPMs and windows that planners knew as such
    wrong: list[str]

    def __str__(self) -> str:
        audits = self.audits.values()
        return (
            f"{len(self.audits)} DGDs, {sum(a.decisions for a in audits)} decisions in up to "
            f"{max(a.epochs for a in audits)} epochs of one DGD, {self.calls} calls to scale, "
            f"{sum(a.applied for a in audits)} applied; "
            f"gaps {sum(a.gaps for a in audits)}, repeats {sum(a.repeats for a in audits)}, "
            f"epochs back {sum(a.epochs_back for a in audits)}, applied twice {sum(a.applied_twice for a in audits)}, "
            f"stale calls {sum(a.stale for a in audits)}, ticks repeated {sum(a.ticks_repeated for a in audits)}; "
            f"FPMs stored {self.fpms[0]}, counted {self.fpms[1]} (and {self.repeated[0]} again); traffic windows "
            f"stored {self.windows[0]}, counted {self.windows[1]} (and {self.repeated[1]} again)"
        )


async def examine(fleet: Fleet) -> Findings:
    """The audit of every DGD, from the log and the last snapshot, once the executor has finished."""
    await asyncio.gather(*fleet.working)
    logs = {stream.name: await fleet.all_of(stream) for stream in (DECISIONS, ACKS, TICKS, STATE)}
    found = Findings({}, 0, (0, 0), (0, 0), (0, 0), [])
    for name, dgd in fleet.dgds.items():
        decisions, acks, ticks, states = (logs[stream.name][name] for stream in (DECISIONS, ACKS, TICKS, STATE))
        audited = found.audits[name] = audit(decisions, acks, dgd.calls, ticks)
        planner = Planner.restore(_snapshot(states[-1]))
        fpm, traffic = planner.fpm.counters, planner._memory.traffic
        found.calls += len(dgd.calls)
        found.fpms = found.fpms[0] + dgd.fpms, found.fpms[1] + fpm.seen
        found.windows = found.windows[0] + dgd.windows, found.windows[1] + traffic.seen
        found.repeated = found.repeated[0] + fpm.duplicate, found.repeated[1] + traffic.duplicates
        found.wrong += [] if audited.clean else [f"{name}: {audited}"]
        found.wrong += _differ(f"{name}: FPMs", dgd.fpms, fpm.seen)
        found.wrong += _differ(f"{name}: windows", dgd.windows, traffic.seen)
        found.wrong += _differ(f"{name}: calls to scale and acks", len(dgd.calls), audited.applied)
    return found


def _differ(what: str, made: int, counted: int) -> list[str]:
    return [] if made == counted else [f"{what}: {made} made, {counted} counted"]


@asynccontextmanager
async def fleet_on(folder: Path, *, dgds: int = 64, speed: float = 5.0, seed: int = 1) -> AsyncIterator[Fleet]:
    """A server of its own with DGDs that speak, and an executor for all of them; no planner."""
    server = EmbeddedNats(folder / "nats")
    server.start()
    fleet = Fleet(server, folder, dgds, speed, seed)
    await fleet.records.bus.open()
    await fleet.records.bus.ensure(STREAMS.values())
    tasks = [asyncio.create_task(fleet.feed()), asyncio.create_task(fleet.execute())]
    try:
        yield fleet
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await fleet.records.bus.close()
        server.stop()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
