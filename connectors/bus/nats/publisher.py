"""Publishing with acknowledgement: one message, or many in one window."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_hex

from nats import errors
from nats.aio.msg import Msg

from headrace.connectors.bus.base import Outgoing, check_headers, size_of, too_large
from headrace.connectors.bus.nats.api import (
    ANSWER_S,
    POSITION,
    WRONG_LAST,
    JetStreamError,
    NoResponders,
    answer,
)
from headrace.connectors.bus.nats.connection import Session
from headrace.connectors.bus.nats.link import Link
from headrace.connectors.bus.nats.replies import ConnectionLost, NotAllowed
from headrace.schemas.errors import BusError, Fenced

MESSAGE_ID = "Nats-Msg-Id"
_EXPECT_LAST = "Nats-Expected-Last-Subject-Sequence"
# A server refuses what is beyond 10,000 messages or 128 MB waiting for one stream, from all its publishers, and a
# refusal in the middle of a window costs the order. More in a window is no faster.
_WINDOW_MESSAGES = 250
_WINDOW_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Ready:
    """A message as it goes on the wire."""

    stream: str
    key: str
    subject: str
    data: bytes
    headers: dict[str, str]

    @property
    def message_id(self) -> str:
        return self.headers[MESSAGE_ID]


class Publisher:
    """Stores messages exactly once: every message has an id, and what may have been lost is sent again under it."""

    def __init__(self, link: Link) -> None:
        self._connection = link.connection
        self._api = link.api
        self._streams = link.streams
        self._subjects = link.subjects
        self._patience_s = link.patience_s
        self._ids = map(f"{token_hex(8)}-{{}}".format, itertools.count())

    async def publish(self, out: Outgoing, expect_last: int | None) -> int:
        """Store one message; its position. Raises Fenced, or BusError."""
        ready = self._ready(out)
        headers = ready.headers if expect_last is None else {**ready.headers, _EXPECT_LAST: str(expect_last)}
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience_s
        while True:
            session = await self._connection.session(give_up)
            self._check_size(out, session)
            answer_s = min(ANSWER_S, max(0.1, give_up - loop.time()))
            try:
                ack = answer(await session.replies.ask(ready.subject, ready.data, headers, answer_s))
                return int(ack["seq"])
            except JetStreamError as e:
                if e.err_code in WRONG_LAST and expect_last is not None:
                    return await self._ours_or_fenced(ready, expect_last, e)
                if not e.passing:
                    raise BusError(f"{out.key} on {out.stream} was refused: {e}") from e
                problem = str(e)
            except NoResponders:
                await self._streams.describe(out.stream)
                problem = "no stream took it"
            except TimeoutError:
                problem = "no acknowledgement"
                await self._connection.suspect(session)
            except NotAllowed as e:
                raise BusError(
                    f"this user of NATS may not publish {out.key} on {out.stream}: {e}. Allow it there"
                ) from e
            except (ConnectionLost, errors.Error) as e:
                problem = f"{e}" or "connection lost"
            if loop.time() > give_up:
                raise BusError(
                    f"{out.key} on {out.stream} could not be stored within {self._patience_s:g} s: {problem}. It may "
                    f"have been stored; publish it again with the same message id {ready.message_id}"
                )
            await asyncio.sleep(0.05)

    async def publish_many(self, batch: Sequence[Outgoing]) -> None:
        """Store messages in order. Raises BusError when one is refused, or none gets through for the patience."""
        if not batch:
            return
        ready = [self._ready(out) for out in batch]
        loop = asyncio.get_running_loop()
        stored, give_up = 0, loop.time() + self._patience_s
        while stored < len(ready):
            session = await self._connection.session(give_up)
            for out in batch[stored:]:
                self._check_size(out, session)
            window = _Window(session, ready[stored:])
            problem = await window.run()
            if window.stored:
                stored, give_up = stored + window.stored, loop.time() + self._patience_s
            if problem is None:
                continue
            why = await self._why(problem, ready[stored].stream, session)
            if loop.time() > give_up:
                raise BusError(
                    f"{len(ready) - stored} of {len(ready)} messages could not be stored, the first for "
                    f"{ready[stored].key} on {ready[stored].stream}, for {self._patience_s:g} s: {why}"
                )
            await asyncio.sleep(0.05)

    def _ready(self, out: Outgoing) -> _Ready:
        check_headers(out)
        headers = {**out.headers, MESSAGE_ID: out.message_id or next(self._ids)}
        return _Ready(out.stream, out.key, self._subjects.subject(out.stream, out.key), out.data, headers)

    def _check_size(self, out: Outgoing, session: Session) -> None:
        if size_of(out) > session.max_payload:
            raise too_large(out, session.max_payload)

    async def _ours_or_fenced(self, ready: _Ready, expect_last: int, e: JetStreamError) -> int:
        """After a refusal: the position when the newest message is ours, stored by a try whose answer was lost."""
        for _ in range(20):
            newest = await self._streams.newest(ready.stream, ready.key)
            headers = (newest.headers if newest else None) or {}
            position, message_id = int(headers.get(POSITION, 0)), headers.get(MESSAGE_ID)
            if position != expect_last:
                break
            await asyncio.sleep(0.05)  # a replica that is behind the leader has answered
        if message_id == ready.message_id:
            return position
        raise Fenced(
            f"{ready.key} on {ready.stream}: the newest message is at {position}, not at {expect_last}; "
            f"another has written"
        ) from e

    async def _why(self, problem: Exception, stream: str, session: Session) -> str:
        """A passing problem in words. Raises BusError when it is a lasting one."""
        match problem:
            case NoResponders():
                await self._streams.describe(stream)
                return "no stream took it"
            case JetStreamError() if not problem.passing:
                raise BusError(f"a message on {stream} was refused: {problem}") from problem
            case NotAllowed():
                raise BusError(f"this user of NATS may not publish on {stream}: {problem}. Allow it there") from problem
            case TimeoutError():
                await self._connection.suspect(session)
                return "no acknowledgement"
        return f"{problem}" or "connection lost"


class _Window:
    """Sends messages on one session with a bounded number unacknowledged; after the first problem it sends no more."""

    def __init__(self, session: Session, ready: Sequence[_Ready]) -> None:
        self._session = session
        self._ready = ready
        self._acked = bytearray(len(ready))
        self._sent = 0
        self._open = 0
        self._open_bytes = 0
        self._problem: Exception | None = None
        self._over = False  # no more acknowledgements will come
        self._progress = asyncio.Event()

    @property
    def stored(self) -> int:
        """How many are stored without a gap from the first."""
        first_open = self._acked.find(0)
        return len(self._acked) if first_open < 0 else first_open

    async def run(self) -> Exception | None:
        """Send all and wait for their acknowledgements. The first problem, or None when all are stored."""
        try:
            subjects = {message.subject for message in self._ready}
            reply = self._session.replies.open(subjects, self._acknowledged, self._failed)
        except ConnectionLost as e:
            return e
        try:
            while self._problem is None and self._sent < len(self._ready):
                await self._send(reply)
                await self._wait(until_open=_WINDOW_MESSAGES // 2 if self._sent < len(self._ready) else 0)
            await self._wait(until_open=0)  # after a refusal too: what is stored must be known before the next try
        except TimeoutError as e:
            return self._problem or e
        except errors.Error as e:
            return self._problem or ConnectionLost(str(e))
        finally:
            self._session.replies.close(reply)
        return self._problem

    async def _send(self, reply: str) -> None:
        client = self._session.client
        while self._sent < len(self._ready) and self._open < _WINDOW_MESSAGES and self._open_bytes < _WINDOW_BYTES:
            if self._problem is not None:
                return
            message = self._ready[self._sent]
            self._open += 1
            self._open_bytes += len(message.data)
            self._sent += 1
            await client.publish(
                message.subject, message.data, reply=f"{reply}-{self._sent - 1}", headers=message.headers
            )

    async def _wait(self, until_open: int) -> None:
        """Until few enough are unacknowledged. Raises TimeoutError when none is acknowledged for a while."""
        while not self._over and (self._open > until_open or self._open_bytes >= _WINDOW_BYTES):
            self._progress.clear()
            async with asyncio.timeout(ANSWER_S):
                await self._progress.wait()

    def _failed(self, why: Exception) -> None:
        self._over = True
        self._problem = self._problem or why
        self._progress.set()

    def _acknowledged(self, number: int, message: Msg) -> None:
        self._open -= 1
        self._open_bytes -= len(self._ready[number].data)
        self._progress.set()
        if b'"error"' not in message.data and message.data:
            self._acked[number] = 1
            return
        try:
            answer(message)
        except (JetStreamError, NoResponders) as e:
            self._problem = self._problem or e
