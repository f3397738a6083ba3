"""Counts the FPMs on a log as they come, so that what retention takes meanwhile has been counted too."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from audit import Iteration, iterations
from bus_support import eventually

from headrace.connectors.bus.records import RecordReader
from headrace.schemas.fpm_batch import FpmBatch


class FpmTap:
    """Where on the log each iteration stood first."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self._first_at: dict[Iteration, int] = {}

    async def follow(self) -> None:
        async for found in self._reader:
            for batch, message in found:
                assert isinstance(batch, FpmBatch)
                for iteration in iterations(batch):
                    self._first_at.setdefault(iteration, message.position)

    async def different(self, until: int) -> int:
        """How many different iterations the log has held up to a position."""
        await eventually(lambda: self._reader.position >= until)
        return sum(at <= until for at in self._first_at.values())


@asynccontextmanager
async def fpm_tap(reader: RecordReader) -> AsyncIterator[FpmTap]:
    """A tap that follows until it is left. `reader` begins where nothing is yet."""
    tap = FpmTap(reader)
    following = asyncio.create_task(tap.follow())
    try:
        yield tap
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await reader.close()
