"""DGDs that begin to speak: found by asking the streams which keys they hold."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from headrace.connectors.bus.base import Bus
from headrace.schemas.errors import BusError
from headrace.schemas.streams import FPM, INVENTORY, TRAFFIC, Stream

log = logging.getLogger("headrace.shards")

SPEAK_ON: tuple[Stream, ...] = (INVENTORY, FPM, TRAFFIC)
LOOK_S = 2.0
LOOK_CLOSELY = 15  # every so many looks, even where the number of keys is what it was


class Discovery:
    """Asks how many keys a stream has, and for their names only when that has changed, or after a while."""

    def __init__(self, bus: Bus, matches: Callable[[str], bool], found: Callable[[Iterable[str]], None]) -> None:
        self._bus = bus
        self._matches = matches
        self._found = found
        self._counts: dict[str, int | None] = {}
        self._looks = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self.look()
            except BusError as e:
                log.warning("DGDs cannot be looked for: %s", e)
            try:
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Tell of every DGD that is ours and speaks. Raises BusError."""
        closely = self._looks % LOOK_CLOSELY == 0
        self._looks += 1
        for stream in SPEAK_ON:
            count = (await self._bus.info(stream)).keys
            if count is None or closely or self._counts.get(stream.name) != count:
                keys = await self._bus.keys(stream)
                self._counts[stream.name] = count
                self._found(sorted(filter(self._matches, keys)))
