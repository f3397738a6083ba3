"""What a watcher knows: the newest tick, decisions and how they ended, gathered from the bus alone."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.decision import Decision
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.streams import ACKS, DECISIONS, INVENTORY, TICKS, Stream
from headrace.schemas.tick_report import TickReport

SHOWN_DECISIONS = 10
HISTORY = 720


@dataclass(slots=True)
class Watch:
    """Feed it records; a view reads it. Times are the planner's."""

    tick: TickReport | None = None
    inventory: WorkerInventory | None = None
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=SHOWN_DECISIONS))
    acks: dict[tuple[int, int], DecisionAck] = field(default_factory=dict)  # the last word on each
    issued: int = 0
    settled: int = 0
    load: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=HISTORY))  # time, requests/s
    forecast: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=HISTORY)
    )  # time it is for, requests/s

    def take(self, record: Record) -> None:
        match record:
            case TickReport():
                self._tick(record)
            case Decision():
                self.decisions.append(record)
                self.issued += not record.advisory
            case DecisionAck():
                self._ack(record)
            case WorkerInventory():
                self.inventory = record

    def _tick(self, report: TickReport) -> None:
        self.tick = report
        end, rate = report.load.get("window_end"), report.load.get("requests_per_s")
        if end is not None and rate is not None and (not self.load or self.load[-1][0] < end):
            self.load.append((end, rate))
        made, ahead = report.forecast.get("made_at"), report.forecast.get("requests_per_s")
        if made is not None and ahead is not None and (not self.forecast or self.forecast[-1][0] < made):
            self.forecast.append((made, ahead))

    def _ack(self, ack: DecisionAck) -> None:
        key = (ack.epoch, ack.decision_id)
        before = self.acks.get(key)
        if before is not None and before.status.settles:
            return
        self.acks[key] = ack
        self.settled += ack.status.settles


async def follow(records: RecordBus, dgd: str, watch: Watch, stop: asyncio.Event) -> None:
    """Keep a watch up to date until stopped."""
    async with asyncio.TaskGroup() as group:
        for stream in (TICKS, DECISIONS, ACKS, INVENTORY):
            group.create_task(_follow(records, stream, dgd, watch, stop))


async def _follow(records: RecordBus, stream: Stream, dgd: str, watch: Watch, stop: asyncio.Event) -> None:
    reader = await records.read(stream, dgd, after=0)
    try:
        while not stop.is_set():
            for record, _ in await reader.next(timeout=0.5):
                watch.take(record)
    finally:
        await reader.close()
