"""Requests to JetStream, tried again until they are answered."""

import asyncio
from typing import Any

import msgspec
from nats import errors
from nats.aio.msg import Msg

from headrace.connectors.bus.nats.connection import Connection, Session
from headrace.connectors.bus.nats.replies import ConnectionLost, NotAllowed
from headrace.schemas.errors import BusError

ANSWER_S = 5.0  # how long one try waits
_FIRST_ANSWER_S = 1.0  # a cluster that elects a leader drops requests, so ask again soon, then with more patience
NO_JETSTREAM_S = 5.0  # a server that has just started says "no responders" for a moment
STREAM_NOT_FOUND = 10059
WRONG_LAST = (10071, 10164)
_IN_PROCESS = 10158  # a message with this id is being stored right now

POSITION = "Nats-Sequence"  # header of a stored message that was asked for

Json = dict[str, Any]


class JetStreamError(Exception):
    """An error answer of the JetStream API."""

    def __init__(self, error: Json) -> None:
        self.code = int(error.get("code", 0))
        self.err_code = int(error.get("err_code", 0))
        self.description = str(error.get("description", "no description"))
        super().__init__(f"{self.description} (JetStream error {self.err_code})")

    @property
    def passing(self) -> bool:
        """Worth another try: no leader yet, starting up, or too much at once."""
        return self.code in (429, 503) or self.err_code == _IN_PROCESS


class NoResponders(Exception):
    """Nobody listens on the subject: no such stream, or JetStream is not there (yet)."""


def status(message: Msg) -> str | None:
    """The status of a message that is an answer of the server itself, 404, 503, 100; a stored message has none."""
    headers = message.headers
    return headers.get("Status") if headers and POSITION not in headers else None


def answer(message: Msg) -> Json:
    """The JSON of an answer. Raises NoResponders or JetStreamError."""
    if status(message) == "503":
        raise NoResponders
    found: Json = msgspec.json.decode(message.data)
    if "error" in found:
        raise JetStreamError(found["error"])
    return found


class JetStreamApi:
    """JSON requests on ``$JS.API``. All that are made here may be repeated."""

    def __init__(self, connection: Connection, patience_s: float) -> None:
        self._connection = connection
        self._patience_s = patience_s

    async def once(self, session: Session, subject: str, body: Json | None = None) -> Json:
        """One try on one session. Raises JetStreamError, NoResponders, ConnectionLost, NotAllowed, TimeoutError."""
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            return answer(await session.replies.ask(f"$JS.API.{subject}", data, None, ANSWER_S))
        except errors.Error as e:
            raise ConnectionLost from e

    async def request(self, subject: str, body: Json | None = None) -> Json:
        """Ask until there is an answer. Raises JetStreamError for a lasting one, BusError after the patience."""
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            return answer(await self.raw(subject, data, NO_JETSTREAM_S))
        except NoResponders as e:
            raise BusError(
                "the NATS server has no JetStream: enable it there and for our account (nats-server -js)"
            ) from e

    async def raw(self, subject: str, data: bytes, nobody_s: float) -> Msg:
        """Ask until there is an answer that is no passing error.

        Raises NoResponders when nobody listens for `nobody_s` seconds, BusError after the patience.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        give_up = started + self._patience_s
        wait_s = _FIRST_ANSWER_S
        while True:
            session = await self._connection.session(give_up)
            try:
                answer_s = min(wait_s, max(0.1, give_up - loop.time()))
                message = await session.replies.ask(f"$JS.API.{subject}", data, None, answer_s)
                problem = _passing_problem(message)
                if problem is None:
                    return message
                if problem is _NOBODY and loop.time() >= started + nobody_s:
                    raise NoResponders
            except TimeoutError:
                problem = "no answer"
                wait_s = min(2 * wait_s, ANSWER_S)
                await self._connection.suspect(session)
            except NotAllowed as e:
                raise BusError(f"this user of NATS may not do what the bus needs: {e}. Allow it on the server") from e
            except (ConnectionLost, errors.Error) as e:
                problem = f"{e}" or "connection lost"
            if loop.time() > give_up:
                raise BusError(f"no answer from NATS to {subject} within {self._patience_s:g} s: {problem}")
            await asyncio.sleep(0.05)


_NOBODY = "no responders"


def _passing_problem(message: Msg) -> str | None:
    try:
        if status(message) is None and b'"error"' in message.data[:200]:
            answer(message)
        elif status(message) == "503":
            return _NOBODY
    except JetStreamError as e:
        return str(e) if e.passing else None
    return None
