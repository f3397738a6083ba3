"""What the owner of a DGD writes: its snapshot and its decisions, each stored only if nobody else has written since.

The broker decides, so a process that was paused for an hour is refused like any other. Bytes that no planner can have
written are not a new owner: they go to the dead letters, and the owner goes on behind them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import TypeVar

from msgspec.structs import replace

from headrace.connectors.bus.base import TooLarge
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.base import Record
from headrace.schemas.cloudevents import record_id
from headrace.schemas.codec import decode
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError, Fenced, RecordError
from headrace.schemas.reasons import DeadLetterReason
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import Stream, stream_of

log = logging.getLogger("headrace.planner")
T = TypeVar("T")

RETRY_S = 1.0


@dataclass(slots=True)
class Writer:
    """Every method tries until the bus takes what it is given: a lost decision or report would be a hole in the log.

    Positions are those of the newest snapshot and decision that this process knows of.
    """

    records: RecordBus
    dgd: str
    state_position: int = 0
    decision_position: int = 0
    _owner: str = field(default_factory=lambda: token_hex(4))
    _saves: int = 0

    async def save(self, state: PlannerState) -> None:
        """Store a snapshot. Raises Fenced when another owner has: this one may write nothing more."""
        self._saves += 1
        # Neither two owners that begin one epoch at once nor two snapshots of one moment may pass for one message.
        identity = f"{record_id(state)}:{self._owner}:{self._saves}"
        try:
            self.state_position = await self._append(state, self.state_position, identity)
        except TooLarge as e:
            log.error("%s: no snapshot, a planner that starts now reads the whole log: %s", self.dgd, e)
            empty = replace(state, positions={}, crc32=0, state=b"")
            self.state_position = await self._append(empty, self.state_position, identity)

    async def decide(self, decision: Decision) -> None:
        """Store a decision. Raises Fenced when somebody else has written one."""
        self.decision_position = await self._append(decision, self.decision_position, None)

    async def say(self, records: Sequence[Record]) -> None:
        """Store records that anybody may write. One that is too large is lost, and logged."""
        try:
            await self._insist(partial(self.records.publish_many, records))
        except TooLarge as e:
            if len(records) == 1:
                log.error("%s: lost: %s", self.dgd, e)
                return
            for record in records:
                await self.say([record])

    async def _append(self, record: Record, last: int, identity: str | None) -> int:
        while True:
            try:
                return await self._insist(partial(self.records.publish, record, identity, last))
            except Fenced:
                found = await self._insist(partial(self._stranger, stream_of(record)))
                if found is None or found == last:
                    raise
                last = found

    async def _stranger(self, stream: Stream) -> int | None:
        """Where the newest message is, if no planner wrote it; 0 where the stream was emptied. Else None."""
        message = await self.records.bus.last(stream, self.dgd)
        if message is None:
            return 0
        try:
            if decode(stream, message.data).dgd == self.dgd:
                return None
            error = RecordError(f"a {stream.name} record of another DGD", reason=DeadLetterReason.INVALID)
        except RecordError as e:
            if e.reason == DeadLetterReason.UNSUPPORTED_VERSION:
                return None  # of an owner that speaks a later version
            error = e
        log.warning("%s: a stranger has written to %s, at %d: %s", self.dgd, stream.name, message.position, error)
        await self.records.reject(message, error.reason, str(error))
        return message.position

    async def _insist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await attempt()
            except (Fenced, TooLarge):
                raise
            except BusError as e:
                log.warning("%s: the bus does not take what is planned (%s); trying again", self.dgd, e)
                await asyncio.sleep(RETRY_S)
