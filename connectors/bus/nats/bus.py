"""The bus on NATS JetStream: connection, streams, publisher and readers put together."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime

from headrace.connectors.bus.base import Message, Outgoing, Reader, StreamInfo
from headrace.connectors.bus.nats.api import POSITION, JetStreamError
from headrace.connectors.bus.nats.link import link
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
        self._link = link(options, prefix)
        self._publisher = Publisher(self._link)
        self._readers: set[NatsReader] = set()

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
        reader = NatsReader(self._link, stream.name, key)
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

    async def info(self, stream: Stream) -> StreamInfo:
        return await self._link.streams.info(stream.name)

    @property
    def connected(self) -> bool:
        return self._link.connection.connected
