"""A bus on which many read one stream, each its own DGD, through one reader.

A thousand DGDs with eight streams each would be eight thousand consumers on the server, with a heartbeat each second.
Here those that start together share a reader from its first message; one that comes later reads alone until it has
caught up, and then joins. So a process that owns many partitions has, in the long run, one reader for each stream.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from headrace.connectors.bus.base import Bus, Message, Outgoing, Reader, ReaderClosed, StreamInfo
from headrace.schemas.streams import Stream

log = logging.getLogger("headrace.shards")

GATHER_S = 0.02  # those that start together
LOOK_S = 1.0  # of silence: then it may have caught up
RETRY_S = 1.0
MOST_WAITING = 5_000  # messages of one DGD; then the others wait for it


class SharedReads:
    """Hands everything to the bus underneath, but reads of one key from a position, which it shares."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._pumps: dict[str, list[_Pump]] = {}  # by stream

    async def read(self, stream: Stream, *, key: str | None = None, after: int | None = None) -> Reader:
        if key is None or after is None or not self._bus.one_order:
            return await self._bus.read(stream, key=key, after=after)
        reader = KeyReader(stream.name, key, after)
        self._forming(stream, key, after).add(reader)
        return reader

    @property
    def consumers(self) -> int:
        """Readers that are open on the bus underneath."""
        return sum(len(pumps) for pumps in self._pumps.values())

    def _forming(self, stream: Stream, key: str, after: int) -> "_Pump":
        """The pump that is about to start for this stream, from the beginning or from where snapshots end."""
        pumps = self._pumps.setdefault(stream.name, [])
        for pump in pumps:
            # One without keys is about to end.
            if pump.forming and pump.keys and pump.from_start == (after == 0) and key not in pump.keys:
                return pump
        pump = _Pump(self._bus, stream, pumps, from_start=after == 0)
        pumps.append(pump)
        pump.task = asyncio.create_task(pump.run(), name=f"read {stream.name}")
        return pump

    async def open(self) -> None:
        await self._bus.open()

    async def close(self) -> None:
        """Stop reading. The bus underneath stays open."""
        pumps = [pump for found in self._pumps.values() for pump in found]
        for pump in pumps:
            if pump.task is not None:
                pump.task.cancel()
        await asyncio.gather(*(pump.task for pump in pumps if pump.task is not None), return_exceptions=True)

    async def ensure(self, streams: Iterable[Stream]) -> None:
        await self._bus.ensure(streams)

    async def publish(self, out: Outgoing, *, expect_last: int | None = None) -> int:
        return await self._bus.publish(out, expect_last=expect_last)

    async def publish_many(self, batch: Sequence[Outgoing]) -> None:
        await self._bus.publish_many(batch)

    async def read_keys(self, stream: Stream, keys: Collection[str], after: int) -> Reader:
        return await self._bus.read_keys(stream, keys, after)

    async def last(self, stream: Stream, key: str) -> Message | None:
        return await self._bus.last(stream, key)

    async def keys(self, stream: Stream) -> set[str]:
        return await self._bus.keys(stream)

    async def info(self, stream: Stream) -> StreamInfo:
        return await self._bus.info(stream)

    @property
    def one_order(self) -> bool:
        return self._bus.one_order

    @property
    def connected(self) -> bool:
        return self._bus.connected


class KeyReader:
    """One DGD's messages out of a shared reader. What it has had already, it does not get again."""

    def __init__(self, stream: str, key: str, after: int) -> None:
        self.stream = stream
        self.key = key
        self.after = after  # messages up to here are not for it
        self.pump: _Pump | None = None
        self.room = asyncio.Event()
        self.room.set()
        self._messages: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._closed = False

    def put(self, message: Message) -> None:
        self._messages.append(message)
        self._arrived.set()
        if len(self._messages) >= MOST_WAITING:
            self.room.clear()

    async def next(self, timeout: float | None = None, limit: int = 1000) -> list[Message]:
        if self._closed:
            raise ReaderClosed(f"the reader of {self.stream} is closed: open another with Bus.read")
        if not self._messages:
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        found = [self._messages.popleft() for _ in range(min(limit, len(self._messages)))]
        if not self._messages and not self._closed:
            self._arrived.clear()
        self.room.set()
        return found

    async def close(self) -> None:
        self._closed = True
        self._messages.clear()
        self._arrived.set()
        self.room.set()
        if self.pump is not None:
            await self.pump.remove(self)


class _Pump:
    """One reader on the bus, and those whom it feeds."""

    def __init__(self, bus: Bus, stream: Stream, pumps: "list[_Pump]", *, from_start: bool) -> None:
        self._bus = bus
        self._stream = stream
        self._pumps = pumps  # all of this stream
        self.from_start = from_start
        self.forming = True
        self.caught_up = False
        self.task: asyncio.Task[None] | None = None
        self.keys: dict[str, KeyReader] = {}
        self._position = 0
        self._end_at_open = 0
        self._skip_to = 0  # up to here some have had what comes
        self._reader: Reader | None = None

    def add(self, reader: KeyReader) -> None:
        reader.pump = self
        self.keys[reader.key] = reader
        self._position = min(self._position, reader.after)

    async def remove(self, reader: KeyReader) -> None:
        if self.keys.get(reader.key) is reader:
            del self.keys[reader.key]
        if not self.keys and self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self._end()

    async def run(self) -> None:
        try:
            await asyncio.sleep(GATHER_S)
            self.forming = False
            while self.keys:
                try:
                    await self._open()
                    await self._read()
                except Exception as e:  # noqa: BLE001  # this loop keeps planners fed, whatever a bus raises
                    log.warning("%s cannot be read for %d DGDs: %r", self._stream.name, len(self.keys), e)
                    await asyncio.sleep(RETRY_S)
                finally:
                    await self._close()
        finally:
            self._end()

    def _end(self) -> None:
        self.forming = False
        if self in self._pumps:
            self._pumps.remove(self)

    async def _open(self) -> None:
        """Begin where the one begins that has had the least."""
        end = (await self._bus.info(self._stream)).last_position
        for each in self.keys.values():
            if each.after > end:  # a position of a stream that was lost
                each.after = 0
        places = [each.after for each in self.keys.values()]
        if not places:
            return
        self._position, self._skip_to, self._end_at_open = min(places), max(places), end
        keys = list(self.keys)
        reader = await self._bus.read_keys(self._stream, keys, self._position)
        if set(keys) == self.keys.keys():
            self._reader = reader
        else:  # others have joined meanwhile
            await reader.close()

    async def _read(self) -> None:
        reader = self._reader
        while self.keys and reader is not None and reader is self._reader:
            messages = await reader.next(timeout=None if self.caught_up and self._elder is None else LOOK_S)
            for message in messages:
                if reader is not self._reader:
                    return  # it was closed under us: the next one begins behind what was given out
                await self._give(message)
            self.caught_up = self.caught_up or not messages or self._position >= self._end_at_open
            if self.caught_up and self._elder is not None:
                await self._join(self._elder)
                return

    async def _give(self, message: Message) -> None:
        reader = self.keys.get(message.key)
        self._position = message.position
        if reader is None or (message.position <= self._skip_to and message.position <= reader.after):
            return
        reader.after = message.position
        reader.put(message)
        if not reader.room.is_set():
            await reader.room.wait()

    async def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    # -- joining ----------------------------------------------------------------------------------------------------

    @property
    def _elder(self) -> "_Pump | None":
        """The one that reads this stream for the others."""
        for pump in self._pumps:
            if pump is self:
                return None
            if pump.caught_up and pump.keys and not (pump.keys.keys() & self.keys.keys()):
                return pump
        return None

    async def _join(self, elder: "_Pump") -> None:
        """Hand our readers over to the elder, which begins anew where the one is that has had the least."""
        await self._settle()
        await elder._settle()
        if elder is not self._elder:
            return
        readers, self.keys = list(self.keys.values()), {}
        for reader in readers:
            elder.add(reader)
        await elder._begin_anew()

    async def _settle(self) -> None:
        """Note up to where everything has been given out: to the stream's end, where that can be told."""
        position, readers = self._position, list(self.keys.values())
        end = (await self._bus.info(self._stream)).last_position
        newest = [await self._bus.last(self._stream, reader.key) for reader in readers]
        if all(m is None or m.position <= r.after for m, r in zip(newest, readers, strict=True)):
            position = max(position, end)
        for reader in readers:
            reader.after = max(reader.after, position)

    async def _begin_anew(self) -> None:
        await self._close()
