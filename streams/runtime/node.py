"""Run the planner of one DGD on a bus: recover, read, tick, publish.

The order of a tick is what makes a crash harmless: dead letters, then the snapshot (compare-and-set: the fence), then
the decision (compare-and-append), then the rest. A crash after the snapshot repeats the decision, byte for byte, at the
next start; a crash before it is as if the tick had not been.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from headrace.connectors.bus.base import Message
from headrace.connectors.bus.records import RecordBus, RecordReader
from headrace.schemas.base import Record
from headrace.schemas.config import PlannerConfig
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError, Fenced, RecordError
from headrace.schemas.streams import (
    ACKS,
    CONFIG,
    FPM,
    INVENTORY,
    PREDICTIONS,
    PROPOSALS,
    TRAFFIC,
    Stream,
)
from headrace.schemas.tick_report import TickReport
from headrace.streams.planner import Planner
from headrace.streams.runtime.clock import Clock
from headrace.streams.runtime.recovery import recover, snapshot_record, with_positions

log = logging.getLogger("headrace.planner")
T = TypeVar("T")

INPUTS: tuple[Stream, ...] = (FPM, TRAFFIC, INVENTORY, CONFIG, PREDICTIONS, PROPOSALS, ACKS)
RETRY_S = 1.0
POLL_S = 1.0


@dataclass(slots=True)
class NodeOptions:
    """`on_tick` is told of every tick's records once they are published: views, metrics, tests."""

    on_tick: Callable[[list[Record]], None] | None = None
    catch_up_s: float = 30.0  # patience for reading the tail at start


@dataclass(slots=True)
class PlannerNode:
    """The writer of one DGD, until it is stopped or fenced."""

    bus: RecordBus
    config: PlannerConfig
    dgd: str
    clock: Clock
    options: NodeOptions = field(default_factory=NodeOptions)
    planner: Planner = field(init=False)
    positions: dict[str, int] = field(default_factory=dict)
    _letters: list[DeadLetter] = field(default_factory=list)
    _state_position: int = 0
    _decision_position: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Plan until `stop` is set. Raises Fenced when another process has taken this DGD over."""
        readers = await self._start(stop)
        if stop.is_set():
            return
        reading = [asyncio.create_task(self._read(reader, stream, stop)) for stream, reader in readers]
        ticking = asyncio.create_task(self._tick_until(stop))
        try:
            await asyncio.wait([*reading, ticking], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            done = await asyncio.gather(*reading, ticking, return_exceptions=True)
            for _, reader in readers:
                await reader.close()
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome

    # -- start -----------------------------------------------------------------------------------------------------

    async def _start(self, stop: asyncio.Event) -> list[tuple[Stream, RecordReader]]:
        found = await self._insist(lambda: recover(self.bus.bus, self.config, self.dgd, 0.0), stop)
        if found is None:
            return []
        self.planner, self.positions = found.planner, found.positions
        self._state_position, self._decision_position = found.state_position, found.decision_position
        for note in found.notes:
            log.warning("%s: %s", self.dgd, note)
            self.planner.notes.append(note)
        readers = []
        for stream in INPUTS:
            after = self.positions.get(stream.name, 0)
            readers.append((stream, await self.bus.read(stream, key=self.dgd, after=after)))
        for stream, reader in readers:
            await self._catch_up(stream, reader)
        epoch = self.planner.begin_epoch()
        await self._save(stop)
        if found.unpublished is not None:
            await self._publish_decision(found.unpublished, stop)
        log.info("%s: planning in epoch %d, next decision id %d", self.dgd, epoch, self.planner.ledger.next_id)
        return readers

    async def _catch_up(self, stream: Stream, reader: RecordReader) -> None:
        """Read what the log holds beyond the snapshot, so that the first tick knows all of it."""
        end = await self.bus.bus.last(stream, self.dgd)
        while end is not None and self.positions.get(stream.name, 0) < end.position:
            before = reader.position
            self._take(stream, await reader.next(timeout=self.options.catch_up_s))
            if reader.position == before:
                self.planner.notes.append(f"the tail of {stream.name} could not be read to its end at start")
                return
            self.positions[stream.name] = reader.position  # bad messages count as read: they are dead letters now

    # -- records in ------------------------------------------------------------------------------------------------

    async def _read(self, reader: RecordReader, stream: Stream, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._take(stream, await reader.next(timeout=POLL_S))

    def _take(self, stream: Stream, pairs: list[tuple[Record, Message]]) -> None:
        """Feed records to the planner at the time the broker stored them: the log alone decides what they do."""
        for record, message in pairs:
            now = self.clock.of_wall(message.stored_at)
            try:
                letters = self.planner.handle(record, now)
            except RecordError as e:
                letters = [self.bus.letter_for(message, e.reason, str(e))]
            for letter in letters:
                assert isinstance(letter, DeadLetter)
                self._letters.append(msgspec.structs.replace(letter, position=message.position))
            self.positions[stream.name] = message.position

    # -- ticks -----------------------------------------------------------------------------------------------------

    async def _tick_until(self, stop: asyncio.Event) -> None:
        while True:
            await self.clock.sleep_until(self.planner.next_tick_at, stop)
            if stop.is_set():
                return
            await self._tick(stop)

    async def _tick(self, stop: asyncio.Event) -> None:
        now = self.clock.now()
        records = self.planner.tick(now)
        if self.planner.fenced:
            raise Fenced(f"{self.dgd}: a newer owner (epoch {self.planner.ledger.highest_epoch}) has decided")
        positions = dict(self.positions)
        await self._save(stop, now)
        decision = next((r for r in records if isinstance(r, Decision)), None)
        if decision is not None:
            await self._publish_decision(decision, stop)
        rest = [with_positions(r, positions) if isinstance(r, TickReport) else r for r in records if r is not decision]
        await self._insist(lambda: self.bus.publish_many(rest), stop)
        if self.options.on_tick is not None:
            self.options.on_tick(records)

    async def _save(self, stop: asyncio.Event, now: float | None = None) -> None:
        """Dead letters first, for the snapshot's positions say that they are dealt with."""
        letters, self._letters = self._letters, []
        state = snapshot_record(self.planner, self.positions, self.clock.now() if now is None else now)
        if letters:
            await self._insist(lambda: self.bus.publish_many(letters), stop)
        position = await self._insist(lambda: self.bus.publish(state, expect_last=self._state_position), stop)
        if position is not None:
            self._state_position = position

    async def _publish_decision(self, decision: Decision, stop: asyncio.Event) -> None:
        position = await self._insist(lambda: self.bus.publish(decision, expect_last=self._decision_position), stop)
        if position is not None:
            self._decision_position = position

    async def _insist(self, attempt: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T | None:
        """Try until the bus takes it; None when stopped first. A lost decision or report would be a hole in the log."""
        while True:
            try:
                return await attempt()
            except Fenced:
                raise
            except BusError as e:
                if stop.is_set():
                    return None
                log.warning("%s: the bus does not answer (%s); trying again", self.dgd, e)
                await asyncio.sleep(RETRY_S)
