"""An ordered reader that keeps no state on the server: one consumer after another, each behind what came last."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection

from nats import errors
from nats.aio.msg import Msg

from headrace.connectors.bus.base import Message, ReaderClosed
from headrace.connectors.bus.nats.api import STREAM_NOT_FOUND, JetStreamError, Json, NoResponders
from headrace.connectors.bus.nats.consumer import Consumer, config_of
from headrace.connectors.bus.nats.link import Link
from headrace.connectors.bus.nats.replies import ConnectionLost, NotAllowed
from headrace.connectors.bus.nats.subjects import key_of
from headrace.schemas.errors import BusError

log = logging.getLogger(__name__)

BROKERS_OWN = "Nats-"  # headers that are not the publisher's


class Buffer:
    """Messages that came and were not asked for yet, in order and each once."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._messages: deque[Message] = deque()
        self.position = 0  # of the newest message that came
        self.received = 0
        self.taken = 0
        self.arrived = asyncio.Event()

    def put(self, position: int, stored_at: float, message: Msg) -> None:
        if position <= self.position:
            return
        self.position = position
        headers = message.headers
        if headers:
            headers = {name: value for name, value in headers.items() if not name.startswith(BROKERS_OWN)}
        key = key_of(message.subject)
        self._messages.append(Message(self._stream, key, position, message.data, headers or {}, stored_at))
        self.received += 1
        self.arrived.set()

    def take(self, limit: int) -> list[Message]:
        messages = self._messages
        found = [messages.popleft() for _ in range(min(limit, len(messages)))]
        self.taken += len(found)
        if not messages:
            self.arrived.clear()
        return found

    def clear(self) -> None:
        self._messages.clear()


class NatsReader:
    """Reads one stream, or the subjects of some keys of it."""

    def __init__(self, link: Link, stream: str, keys: Collection[str] = ()) -> None:
        self._connection = link.connection
        self._api = link.api
        self._streams = link.streams
        self._stream = stream
        self._name = link.subjects.stream_name(stream)
        self._subjects = sorted({link.subjects.subject(stream, key) for key in keys})
        self._created = ""  # when the stream was: another time is another stream, with positions of its own
        self._buffer = Buffer(stream)
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.on_close: Callable[[NatsReader], None] = lambda _: None

    async def start(self, after: int | None) -> None:
        """Begin to read. Raises BusError when there is no such stream."""
        info = await self._streams.describe(self._stream)
        self._created = info["created"]
        self._buffer.position = info["state"]["last_seq"] if after is None else after
        self._check_position(info)
        self._task = asyncio.create_task(self._read_for_ever(), name=f"read {self._name}")
        self._task.add_done_callback(lambda _: self._buffer.arrived.set())

    async def next(self, timeout: float | None = None, limit: int = 1000) -> list[Message]:
        if self._closed:
            raise ReaderClosed(f"the reader of {self._stream} is closed: open another with Bus.read")
        found = self._buffer.take(limit)
        if not found:
            await self._wait(timeout)
            found = self._buffer.take(limit)
        if self._consumer is not None:
            await self._consumer.answer_questions()
        return found

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._buffer.clear()
        self._buffer.arrived.set()
        self.on_close(self)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _wait(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._buffer.arrived.wait()
        except TimeoutError:
            pass
        if self._task is not None and self._task.done() and not self._closed:
            raise BusError(f"the reader of {self._stream} has ended: {self._task!r}")

    async def _read_for_ever(self) -> None:
        while not self._closed:
            session = await self._connection.session()
            consumer = self._consumer = Consumer(session, self._buffer)
            try:
                self._check_position(await self._api.once(session, f"STREAM.INFO.{self._name}"))
                await consumer.start(self._api, self._name, config_of(self._buffer.position, self._subjects))
                why = await consumer.doubt()
            except JetStreamError as e:
                why = f"{e}"
                if e.err_code == STREAM_NOT_FOUND:
                    await self._restore()
            except (ConnectionLost, NotAllowed, NoResponders, TimeoutError, errors.Error) as e:
                why = f"{e}" or type(e).__name__
            finally:
                await consumer.stop()
            log.info("the reader of %s begins anew behind %d: %s", self._name, self._buffer.position, why)
            if session.live:
                await self._connection.suspect(session)
                await asyncio.sleep(0.05)

    def _check_position(self, info: Json) -> None:
        """Begin at the oldest message when the stream is another than before; at its end when it lost its end."""
        last = info["state"]["last_seq"]
        if info["created"] != self._created:
            log.warning("stream %s was created anew: reading it from its beginning", self._name)
            self._created = info["created"]
            self._buffer.position = 0
        elif last < self._buffer.position:
            began = self._task is not None
            log.warning("stream %s ends at %d, before our position %d", self._name, last, self._buffer.position)
            self._buffer.position = last if began else 0

    async def _restore(self) -> None:
        try:
            await self._streams.describe(self._stream)
        except BusError as e:
            log.warning("the reader of %s waits: %s", self._name, e)
            await asyncio.sleep(1)
