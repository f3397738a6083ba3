"""Answers to what we sent: one inbox for a connection, a future or a handler for each question."""

import asyncio
from collections.abc import Callable, Collection

from nats.aio.client import Client
from nats.aio.msg import Msg

Handler = Callable[[int, Msg], None]
Failed = Callable[[Exception], None]


class ConnectionLost(Exception):
    """The connection ended before the answer came: the question may or may not have been acted upon."""


class NotAllowed(Exception):
    """The server does not let this user publish or subscribe there."""


class Replies:
    """Routes answers by the last token of their subject, ``<id>-<number>``.

    Not nats-py's own `request`: that costs a task and a timer for each message, and its wait can swallow a
    cancellation on Python 3.11.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._prefix = ""
        self._open: dict[str, tuple[Collection[str], Handler, Failed]] = {}
        self._next_id = 0
        self._lost = False

    async def start(self) -> None:
        self._prefix = self._client.new_inbox() + "."
        await self._client.subscribe(self._prefix + "*", cb=self._route, pending_msgs_limit=0, pending_bytes_limit=0)

    def open(self, subjects: Collection[str], handler: Handler, failed: Failed) -> str:
        """A reply subject for questions on `subjects`, to which ``-<number>`` must be added; `close` it at the end.

        `handler` gets the number and the answer; `failed` is called when no more answers can come. Raises
        ConnectionLost when that is so already.
        """
        if self._lost:
            raise ConnectionLost
        self._next_id += 1
        self._open[str(self._next_id)] = subjects, handler, failed
        return f"{self._prefix}{self._next_id}"

    def close(self, reply: str) -> None:
        self._open.pop(reply[len(self._prefix) :], None)

    async def ask(self, subject: str, data: bytes, headers: dict[str, str] | None, timeout_s: float) -> Msg:
        """Send and wait for the answer. Raises TimeoutError, ConnectionLost, NotAllowed, or nats.errors.Error."""
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def arrived(_: int, message: Msg) -> None:
            if not answer.done():
                answer.set_result(message)

        def failed(why: Exception) -> None:
            if not answer.done():
                answer.set_exception(why)

        reply = self.open((subject,), arrived, failed)
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.publish(subject, data, reply=reply + "-0", headers=headers)
                return await answer
        finally:
            self.close(reply)

    def lose(self) -> None:
        """No answer will come any more."""
        self._lost = True
        for _, _, failed in list(self._open.values()):
            failed(ConnectionLost())

    def deny(self, complaint: str) -> None:
        """The server complained about a subject: fail the questions on it, or all when we may not hear answers."""
        for subjects, _, failed in list(self._open.values()):
            if "subscription" in complaint or any(f'"{subject.lower()}"' in complaint for subject in subjects):
                failed(NotAllowed(complaint))

    async def _route(self, message: Msg) -> None:
        name, _, number = message.subject[len(self._prefix) :].partition("-")
        found = self._open.get(name)
        if found is not None:
            found[1](int(number), message)
