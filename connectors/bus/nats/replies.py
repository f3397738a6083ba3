"""Answers to what we sent: one inbox for a connection, a future or a handler for each question."""

import asyncio
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg

Handler = Callable[[int, Msg], None]
Lost = Callable[[], None]


class ConnectionLost(Exception):
    """The connection ended before the answer came: the question may or may not have been acted upon."""


class Replies:
    """Routes answers by the last token of their subject, ``<id>-<number>``.

    Not nats-py's own `request`: that costs a task and a timer for each message, and its wait can swallow a
    cancellation on Python 3.11.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._prefix = client.new_inbox() + "."
        self._open: dict[str, tuple[Handler, Lost]] = {}
        self._next_id = 0
        self._lost = False

    async def start(self) -> None:
        await self._client.subscribe(self._prefix + "*", cb=self._route, pending_msgs_limit=0, pending_bytes_limit=0)

    def open(self, handler: Handler, lost: Lost) -> str:
        """A reply subject, to which ``-<number>`` must be added; `close` it when it is done with.

        `handler` gets the number and the answer; `lost` is called once when no more answers can come. Raises
        ConnectionLost when that is so already.
        """
        if self._lost:
            raise ConnectionLost
        self._next_id += 1
        self._open[str(self._next_id)] = handler, lost
        return f"{self._prefix}{self._next_id}"

    def close(self, reply: str) -> None:
        self._open.pop(reply[len(self._prefix) :], None)

    async def ask(self, subject: str, data: bytes, headers: dict[str, str] | None, timeout_s: float) -> Msg:
        """Send and wait for the answer. Raises TimeoutError, ConnectionLost, or nats.errors.Error."""
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def arrived(_: int, message: Msg) -> None:
            if not answer.done():
                answer.set_result(message)

        def lost() -> None:
            if not answer.done():
                answer.set_exception(ConnectionLost())

        reply = self.open(arrived, lost)
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.publish(subject, data, reply=reply + "-0", headers=headers)
                return await answer
        finally:
            self.close(reply)

    def lose(self) -> None:
        """No answer will come any more."""
        self._lost = True
        for _, lost in self._open.values():
            lost()

    async def _route(self, message: Msg) -> None:
        name, _, number = message.subject[len(self._prefix) :].partition("-")
        found = self._open.get(name)
        if found is not None:
            found[0](int(number), message)
