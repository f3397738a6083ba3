"""Run the planner of one DGD on a bus: recover, read, tick, publish.

The order of a tick is what makes a crash harmless: dead letters, then the snapshot (compare-and-set: the fence), then
the decision (compare-and-append), then the rest. A crash after the snapshot repeats the decision, byte for byte, at the
next start; a crash before it is as if the tick had not been. So a stop may break off whatever hangs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.connectors.bus.base import Message
from headrace.connectors.bus.records import RecordBus, RecordReader
from headrace.schemas.base import Record
from headrace.schemas.config import PlannerConfig
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError, Fenced, RecordError
from headrace.schemas.reasons import DeadLetterReason
from headrace.schemas.streams import (
    ACKS,
    CONFIG,
    FITS,
    FPM,
    INVENTORY,
    PREDICTIONS,
    PROFILES,
    PROPOSALS,
    TRAFFIC,
    Stream,
)
from headrace.schemas.tick_report import TickReport
from headrace.streams.planner import Planner
from headrace.streams.runtime.clock import Clock
from headrace.streams.runtime.fit_desk import FitDesk, fit_desk
from headrace.streams.runtime.fits import Fits
from headrace.streams.runtime.recovery import recover, snapshot_record, with_positions
from headrace.streams.runtime.warmup import warm_up_apart
from headrace.streams.runtime.writer import RETRY_S, Writer

log = logging.getLogger("headrace.planner")

INPUTS: tuple[Stream, ...] = (FPM, TRAFFIC, INVENTORY, CONFIG, PROFILES, FITS, PREDICTIONS, PROPOSALS, ACKS)
TAKE_OVER_TRIES = 5  # a former owner that still runs writes every tick; the second try has little left to read
LOOK_S = 2.0  # without a message of the tail: then the bus is asked again where it ends
CLOCK_CHECK_S = 60.0  # the longest sleep
GRACE_S = 1.0  # for the tick under way when we are stopped
MOST_LETTERS = 64  # dead letters that wait for the next tick


@dataclass(slots=True)
class NodeOptions:
    """`on_tick` is told of every tick's records once they are published: views, metrics, tests."""

    on_tick: Callable[[list[Record]], None] | None = None
    catch_up_s: float = 30.0  # patience for reading the tail at start
    starting: AbstractAsyncContextManager[Any] = field(default_factory=nullcontext)  # held while it recovers
    fits: Fits | None = None  # who makes the fits of forecasters; None: the workers of this process


@dataclass(slots=True)
class PlannerNode:
    """The writer of one DGD, until it is stopped or fenced."""

    bus: RecordBus
    config: PlannerConfig
    dgd: str
    clock: Clock
    options: NodeOptions = field(default_factory=NodeOptions)
    planner: Planner = field(init=False)
    planning: bool = False  # it has taken over
    positions: dict[str, int] = field(default_factory=dict)  # stream -> last position taken in
    _writer: Writer = field(init=False)
    _desk: FitDesk = field(init=False)
    _readers: list[tuple[Stream, RecordReader]] = field(default_factory=list)
    _letters: list[DeadLetter] = field(default_factory=list)
    _flushing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self, stop: asyncio.Event) -> None:
        """Plan until `stop` is set. Raises Fenced when another process has taken this DGD over, BusError when the bus
        is there and cannot be read."""
        with fit_desk(self.dgd, self.options.fits) as self._desk:
            await self._run(stop)

    async def _run(self, stop: asyncio.Event) -> None:
        working, stopping = asyncio.create_task(self._work(stop)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((working,), timeout=GRACE_S)
        finally:
            stop.set()
            await _end((working, stopping))
            await self._close_readers()
        if not working.cancelled():
            working.result()

    async def _work(self, stop: asyncio.Event) -> None:
        async with self.options.starting:
            await self._take_over()
        self.planning = True
        tasks = [asyncio.create_task(self._read(stream, reader)) for stream, reader in self._readers]
        tasks.append(asyncio.create_task(self._tick_until(stop)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(tasks)
        for task in done:
            task.result()

    # -- start -----------------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        """Become the owner. Whoever writes while we read, a former owner that still runs, is read once more."""
        tries = 0
        while True:
            try:
                return await self._take_over_once()
            except BusError as e:
                tries += isinstance(e, Fenced) or self.bus.bus.connected
                if tries >= TAKE_OVER_TRIES:
                    raise
                log.warning("%s: not the owner yet, trying again: %s", self.dgd, e)
                await asyncio.sleep(0.0 if isinstance(e, Fenced) else RETRY_S)

    async def _take_over_once(self) -> None:
        await self._close_readers()
        found = await recover(self.bus.bus, self.config, self.dgd, self.clock)
        self.planner, self.positions, self._letters = found.planner, found.positions, []
        self.planner.forecasts.set_inline(False)
        self._writer = Writer(self.bus, self.dgd, found.state_position, found.decision_position)
        for note in found.notes:
            log.warning("%s: %s", self.dgd, note)
            self.planner.notes.append(note)
        for stream in INPUTS:
            reader = await self.bus.read(stream, key=self.dgd, after=self.positions.get(stream.name, 0))
            self._readers.append((stream, reader))
        for stream, reader in self._readers:
            await self._catch_up(stream, reader)
        await warm_up_apart(self.planner)
        epoch = self.planner.begin_epoch()
        await self._save(self.clock.now())
        if found.unpublished is not None:
            await self._writer.decide(found.unpublished)
        log.info("%s: planning in epoch %d, next decision id %d", self.dgd, epoch, self.planner.ledger.next_id)

    async def _catch_up(self, stream: Stream, reader: RecordReader) -> None:
        """Read what the log holds beyond the snapshot, so that the first tick knows all of it."""
        end, quiet_s = await self._end_of(stream), 0.0
        while self.positions.get(stream.name, 0) < end:
            before = reader.position
            await self._take(stream, reader, timeout=LOOK_S)
            if reader.position != before:
                continue
            end = await self._end_of(stream)  # retention may have taken what we wait for
            quiet_s += LOOK_S if self.bus.bus.connected else 0.0
            if quiet_s >= self.options.catch_up_s:
                self.planner.notes.append(f"the tail of {stream.name} could not be read to its end at start")
                return

    async def _end_of(self, stream: Stream) -> int:
        last = await self.bus.bus.last(stream, self.dgd)
        return 0 if last is None else last.position

    async def _close_readers(self) -> None:
        readers, self._readers = self._readers, []
        for _, reader in readers:
            await reader.close()

    # -- records in ------------------------------------------------------------------------------------------------

    async def _read(self, stream: Stream, reader: RecordReader) -> None:
        while True:
            await self._take(stream, reader)

    async def _take(self, stream: Stream, reader: RecordReader, timeout: float | None = None) -> None:
        for record, message in await reader.next(timeout):
            self._handle(record, message)
            self.positions[stream.name] = message.position
            if len(self._letters) >= MOST_LETTERS:
                await self._flush()
        if reader.position:
            self.positions[stream.name] = reader.position  # bad messages count as read: they are dead letters now

    def _handle(self, record: Record, message: Message) -> None:
        """Feed a record to the planner at the time the broker stored it: the log alone decides what it does."""
        try:
            letters = self.planner.handle(record, self.clock.of_wall(message.stored_at))
        except RecordError as e:
            letters = [self.bus.letter_for(message, e.reason, str(e))]
        except Exception as e:  # one record must not end the planning of a DGD, now and again at every start
            log.exception("%s: record at %d of %s", self.dgd, message.position, message.stream)
            letters = [self.bus.letter_for(message, DeadLetterReason.INVALID, f"{type(e).__name__}: {e}"[:300])]
        for letter in letters:
            assert isinstance(letter, DeadLetter)
            self._letters.append(msgspec.structs.replace(letter, position=message.position))

    async def _flush(self) -> None:
        """Store the dead letters that wait; when this returns, those of every record handled so far are stored."""
        async with self._flushing:
            letters, self._letters = self._letters, []
            await self._writer.say(letters)

    # -- ticks -----------------------------------------------------------------------------------------------------

    async def _tick_until(self, stop: asyncio.Event) -> None:
        while True:
            look_again = self.clock.now() + CLOCK_CHECK_S
            await self.clock.sleep_until(min(self.planner.next_tick_at, look_again), stop)
            if stop.is_set():
                return
            await self._tick()

    async def _tick(self) -> None:
        now = self.clock.now()
        records = self.planner.tick(now)  # nothing where none is due; asking is how a clock set back is noticed
        if not records:
            return
        if self.planner.fenced:
            raise Fenced(f"{self.dgd}: a newer owner (epoch {self.planner.ledger.highest_epoch}) has decided")
        positions = dict(self.positions)
        await self._save(now)
        decision = next((r for r in records if isinstance(r, Decision)), None)
        if decision is not None:
            await self._writer.decide(decision)
        rest = [with_positions(r, positions) if isinstance(r, TickReport) else r for r in records if r is not decision]
        await self._writer.say([*rest, *self._desk.exchange(self.planner, now)])
        if self.options.on_tick is not None:
            self.options.on_tick(records)

    async def _save(self, now: float) -> None:
        """Dead letters first, for the snapshot's positions say that they are dealt with."""
        state = snapshot_record(self.planner, self.positions, now)
        await self._flush()
        await self._writer.save(state)


async def _end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel tasks and wait for them, also for one whose cancellation a library has swallowed."""
    left = [task for task in tasks if not task.done()]
    while left:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=1.0)
        left = [task for task in left if not task.done()]
