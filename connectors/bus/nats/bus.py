"""The bus on NATS JetStream: connection, streams, publisher and readers put together."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from headrace.connectors.bus.base import Message, Outgoing, Reader, StreamInfo
from headrace.connectors.bus.nats.api import POSITION, JetStreamError
from headrace.connectors.bus.nats.link import Link, link
from headrace.connectors.bus.nats.options import NatsOptions
from headrace.connectors.bus.nats.publisher import Publisher
from headrace.connectors.bus.nats.reader import BROKERS_OWN, NatsReader
from headrace.schemas.errors import BusError
from headrace.schemas.streams import Stream


class NatsBus:
    """A bus on the NATS server at a URL, or as the options say. `prefix` begins every subject and stream name."""

    def __init__(self, where: str | NatsOptions, prefix: str = "headrace") -> None:
        options = NatsOptions.from_url(where) if isinstance(where, str) else where
        self.options = options
        self._use(link(options, prefix))

    def _use(self, link: Link) -> None:
        self._link = link
        self._publisher = Publisher(link)
        self._readers: set[NatsReader] = set()

    def buckets(self) -> "NatsBus":
        """A bus on the same connection whose streams are key-value buckets, with one last message per key.

        It is open as long as this one is; closing it closes its readers and leaves the connection alone.
        """
        bus = _Buckets.__new__(_Buckets)
        bus.options = self.options
        bus._use(self._link.bucket())
        return bus

    async def open(self) -> None:
        await self._link.connection.open()
        try:
            await self._link.api.request("INFO")
        except JetStreamError as e:
            await self._link.connection.close()
            raise BusError(f"JetStream on NATS cannot be used: {e}. Enable it for the server and this account") from e
        except BusError:
            await self._link.connection.close()
            raise

    async def close(self) -> None:
        await asyncio.gather(*(reader.close() for reader in list(self._readers)))
        await self._link.connection.close()

    async def ensure(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            await self._link.streams.ensure(stream)

    async def publish(self, out: Outgoing, *, expect_last: int | None = None) -> int:
        return await self._publisher.publish(out, expect_last)

    async def publish_many(self, batch: Sequence[Outgoing]) -> None:
        await self._publisher.publish_many(batch)

    async def read(self, stream: Stream, *, key: str | None = None, after: int | None = None) -> Reader:
        return await self._read(stream, () if key is None else (key,), after)

    async def read_keys(self, stream: Stream, keys: Collection[str], after: int) -> Reader:
        if not keys:
            raise BusError(f"keys of {stream.name} to read: at least one is needed")
        return await self._read(stream, keys, after)

    async def _read(self, stream: Stream, keys: Collection[str], after: int | None) -> Reader:
        reader = NatsReader(self._link, stream.name, keys)
        await reader.start(after)
        self._readers.add(reader)
        reader.on_close = self._readers.discard
        return reader

    async def last(self, stream: Stream, key: str) -> Message | None:
        found = await self._link.streams.newest(stream.name, key)
        if found is None:
            return None
        headers = found.headers or {}
        return Message(
            stream=stream.name,
            key=key,
            position=int(headers[POSITION]),
            data=found.data,
            headers={name: value for name, value in headers.items() if not name.startswith(BROKERS_OWN)},
            stored_at=datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp(),
        )

    async def keys(self, stream: Stream) -> set[str]:
        return await self._link.streams.keys(stream.name)

    async def info(self, stream: Stream) -> StreamInfo:
        return await self._link.streams.info(stream.name)

    @property
    def one_order(self) -> bool:
        return True

    @property
    def connected(self) -> bool:
        return self._link.connection.connected


class _Buckets(NatsBus):
    async def open(self) -> None:
        pass

    async def close(self) -> None:
        await asyncio.gather(*(reader.close() for reader in list(self._readers)))
