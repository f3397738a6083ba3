"""Records that wait to be published: in order, bounded, and never lost silently while the bus is down."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.schemas.base import Record
from headrace.schemas.errors import BusError

log = logging.getLogger(__name__)

PublishMany = Callable[[Sequence[Record]], Awaitable[None]]

_AT_ONCE = 64  # records per publish
_SHORTEST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_LAST_CHANCE_S = 5.0  # for what still waits when the source stops


@dataclass(slots=True)
class OutboxCounters:
    """Weights of records: FPMs for batches, 1 for anything else."""

    published: int = 0
    dropped: int = 0  # the oldest, because the bus was away for too long


class Outbox:
    """Publishes what is put in; retries with the same records, so that a bus with message ids stores each once.

    `limit` bounds the weight that waits; above it the oldest records are dropped and counted.
    """

    def __init__(self, publish_many: PublishMany, *, limit: int, name: str) -> None:
        self.counters = OutboxCounters()
        self._publish_many = publish_many
        self._limit = limit
        self._name = name
        self._waiting: deque[tuple[Record, int]] = deque()
        self._sending: list[tuple[Record, int]] = []
        self._weight = 0
        self._wake = asyncio.Event()

    @property
    def waiting(self) -> int:
        """The weight that is not published yet."""
        return self._weight

    def put(self, record: Record, weight: int = 1) -> None:
        """Queue a record. Drops the oldest ones that wait if there are too many."""
        self._waiting.append((record, weight))
        self._weight += weight
        while self._weight > self._limit and len(self._waiting) > 1:
            _, dropped = self._waiting.popleft()
            self._weight -= dropped
            self.counters.dropped += dropped
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop`, then once more what is left."""
        stopping = asyncio.create_task(self._wake_at(stop))
        try:
            while not stop.is_set():
                self._wake.clear()
                if self._sending or self._waiting:
                    await self._send(stop)
                else:
                    await self._wake.wait()
            await self._send_rest()
        finally:
            stopping.cancel()

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _send(self, stop: asyncio.Event) -> None:
        """Publish some records, however often it takes."""
        tries = 0
        while not stop.is_set():
            try:
                await self._send_once()
                return
            except BusError as e:
                if tries == 0:
                    log.warning("%s: the bus does not take records, keeping up to %d: %s", self._name, self._limit, e)
            await pause(stop, min(_SHORTEST_WAIT_S * 2**tries, _LONGEST_WAIT_S))
            tries = min(tries + 1, 10)

    async def _send_once(self) -> None:
        while self._waiting and len(self._sending) < _AT_ONCE:
            self._sending.append(self._waiting.popleft())
        await self._publish_many([record for record, _ in self._sending])
        sent = sum(weight for _, weight in self._sending)
        self._weight -= sent
        self.counters.published += sent
        self._sending = []

    async def _send_rest(self) -> None:
        try:
            async with asyncio.timeout(_LAST_CHANCE_S):
                while self._sending or self._waiting:
                    await self._send_once()
        except (BusError, TimeoutError):
            self.counters.dropped += self._weight
            log.warning("%s: stopped while %d could not be published", self._name, self._weight)


async def pause(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, but no longer than until `stop`. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
