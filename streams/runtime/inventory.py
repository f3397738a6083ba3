"""A declared inventory: the fleet as the configuration says, then as the acks of executors say. For lack of an orchestrator."""

import asyncio
from collections.abc import Mapping

from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Role
from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.schemas.streams import ACKS
from headrace.streams.runtime.clock import Clock

EVERY_S = 10.0


class DeclaredInventory:
    """Publishes the counts every ten seconds, and at once when an `applied` ack changes them."""

    def __init__(self, records: RecordBus, dgd: str, declared: Mapping[Role, int], clock: Clock) -> None:
        self._records = records
        self._dgd = dgd
        self._counts = dict(declared)
        self._clock = clock

    async def run(self, stop: asyncio.Event) -> None:
        last = await self._records.last(ACKS, self._dgd)
        if last is not None:
            self._take(last[0])
        reader = await self._records.read(ACKS, self._dgd)
        try:
            while not stop.is_set():
                await self._records.publish(self._record())
                await self._wait(reader, stop)
        finally:
            await reader.close()

    async def _wait(self, reader: object, stop: asyncio.Event) -> None:
        waited = 0.0
        while waited < EVERY_S and not stop.is_set():
            pairs = await reader.next(timeout=1.0)  # type: ignore[attr-defined]
            if any([self._take(record) for record, _ in pairs]):
                return
            waited += 1.0

    def _take(self, record: object) -> bool:
        """The counts of an applied decision; false when they say nothing new."""
        if not isinstance(record, DecisionAck) or record.status is not AckStatus.APPLIED or not record.counts:
            return False
        changed = {role: n for role, n in record.counts.items() if self._counts.get(role) != n}
        self._counts |= changed
        return bool(changed)

    def _record(self) -> WorkerInventory:
        return WorkerInventory(
            dgd=self._dgd,
            source="declared",
            observed_at=self._clock.now(),
            roles={role: RoleInventory(ready=n) for role, n in self._counts.items()},
        )
