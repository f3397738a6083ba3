"""Source: a declared inventory, for fleets that no orchestrator counts: as declared, then as executors have made it.

The counts begin as declared. An `applied` ack says which counts an executor has seen; from then on these are published.
A worker that dies unseen stays in the inventory: where an orchestrator can be asked, ask it instead.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from headrace.connectors.bus.records import RecordBus, RecordReader
from headrace.connectors.sources.outbox import pause
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Role
from headrace.schemas.errors import BusError, ConfigError
from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.schemas.streams import ACKS

log = logging.getLogger(__name__)

_RECENT = 64  # positions before the newest ack that are read at the start: the newest may say `accepted` only
_LOOK_EVERY_S = 0.5


class Declared:
    """The counts, pure: declared ones, replaced by those of the newest applied decision."""

    def __init__(self, dgd: str, source: str, declared: Mapping[Role, RoleInventory | int]) -> None:
        """A number declares that many ready workers and nothing else. Raises ConfigError when there is no role."""
        if not declared:
            raise ConfigError(f"the declared inventory of {dgd} has no role: give how many workers of each role run")
        self.dgd = dgd
        self.source = source
        self.roles = {role: RoleInventory(ready=n) if isinstance(n, int) else n for role, n in declared.items()}
        self._newest = (-1, -1)

    def take(self, ack: DecisionAck) -> bool:
        """Take an ack in; true when it changes the counts. Acks of older decisions and of other DGDs change nothing."""
        place = (ack.epoch, ack.decision_id)
        if ack.dgd != self.dgd or ack.status is not AckStatus.APPLIED or place < self._newest:
            return False
        self._newest = place
        before = dict(self.roles)
        for role, count in ack.counts.items():
            known = self.roles.get(role)
            if known is None:
                self.roles[role] = RoleInventory(ready=count)
            elif known.ready != count or known.starting or known.draining:
                self.roles[role] = msgspec.structs.replace(known, ready=count, starting=0, draining=0, unschedulable=0)
        return self.roles != before

    def record(self, now: float) -> WorkerInventory:
        return WorkerInventory(dgd=self.dgd, source=self.source, observed_at=now, roles=dict(self.roles))


class DeclaredInventory:
    """Publishes the counts every `every_s` seconds, and at once when an executor has changed them."""

    def __init__(
        self,
        records: RecordBus,
        dgd: str,
        declared: Mapping[Role, RoleInventory | int],
        *,
        name: str = "declared",
        every_s: float = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if every_s <= 0:
            raise ConfigError(
                f"the declared inventory of {dgd} cannot be published every {every_s:g} s: choose more than 0"
            )
        self._records = records
        self._counts = Declared(dgd, name, declared)
        self._every_s = every_s
        self._clock = clock or records.clock

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop`. While the bus is away it tries again."""
        while not stop.is_set():
            try:
                await self._follow(stop)
            except BusError as e:
                log.warning("%s: the inventory cannot be published: %s", self._counts.dgd, e)
                await pause(stop, _LOOK_EVERY_S)

    async def _follow(self, stop: asyncio.Event) -> None:
        last = await self._records.bus.last(ACKS, self._counts.dgd)
        end = 0 if last is None else last.position
        reader = await self._records.read(ACKS, self._counts.dgd, after=max(0, end - _RECENT))
        try:
            if end:
                await self._take(reader, _LOOK_EVERY_S)
            while not stop.is_set():
                await self._records.publish(self._counts.record(self._clock()))
                await self._until_due(reader, stop)
        finally:
            await reader.close()

    async def _until_due(self, reader: RecordReader, stop: asyncio.Event) -> None:
        """Read acks until the next record is due."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._every_s
        while not stop.is_set() and (left_s := due - loop.time()) > 0:
            if await self._take(reader, min(left_s, _LOOK_EVERY_S)):
                return

    async def _take(self, reader: RecordReader, timeout_s: float) -> bool:
        changed = [self._counts.take(ack) for ack, _ in await reader.next(timeout_s) if isinstance(ack, DecisionAck)]
        return any(changed)
