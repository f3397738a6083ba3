"""One ephemeral push consumer on the server, used until the first doubt about it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from nats import errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from headrace.connectors.bus.nats.api import JetStreamApi, Json, status
from headrace.connectors.bus.nats.connection import Session

HEARTBEAT_S = 1.0
SILENCE_S = 3.0  # three missed heartbeats: the consumer is gone
_FORGET_S = 30.0  # the server drops a consumer that nobody listens to
_NANOSECONDS = 1_000_000_000
_DELIVERED = "$JS.ACK."
_LONG_ACK_TOKENS = 11  # $JS.ACK with domain and account has two tokens more in front


class Sink(Protocol):
    """Where messages go, with a count of what went in and what was taken out again."""

    received: int
    taken: int

    def put(self, position: int, stored_at: float, message: Msg) -> None: ...


def config_of(after: int, subjects: Sequence[str]) -> Json:
    """The configuration of a consumer that delivers what comes behind a position, of some subjects or of all."""
    config: Json = {
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
        "ack_policy": "none",
        "max_deliver": 1,
        "replay_policy": "instant",
        "flow_control": True,
        "idle_heartbeat": int(HEARTBEAT_S * _NANOSECONDS),
        "inactive_threshold": int(_FORGET_S * _NANOSECONDS),
        "mem_storage": True,
        "num_replicas": 1,
    }
    if len(subjects) == 1:
        return {**config, "filter_subject": subjects[0]}
    return {**config, "filter_subjects": list(subjects)} if subjects else config


class Consumer:
    """Delivers to a sink. The server numbers what it sends, so a gap shows at the next message or heartbeat."""

    def __init__(self, session: Session, sink: Sink) -> None:
        self._session = session
        self._sink = sink
        self._count = 0
        self._heard_at = asyncio.get_running_loop().time()
        self._now: Callable[[], float] = asyncio.get_running_loop().time
        self._doubt: str | None = None
        self._doubtful = asyncio.Event()
        self._questions: deque[tuple[int, str]] = deque()
        self._subscription: Subscription | None = None
        self._place: str | None = None

    async def start(self, api: JetStreamApi, stream: str, config: Json) -> None:
        """Subscribe, then create. Raises nats.errors.Error, and what `JetStreamApi.once` raises."""
        inbox = self._session.client.new_inbox()
        # No limit on our side: flow control bounds what the server sends before the sink has been emptied.
        self._subscription = await self._session.client.subscribe(
            inbox, cb=self._arrive, pending_msgs_limit=0, pending_bytes_limit=0
        )
        self._session.watch(self._lost)
        body = {"stream_name": stream, "config": {**config, "deliver_subject": inbox}}
        created = await api.once(self._session, f"CONSUMER.CREATE.{stream}", body)
        self._place = f"{stream}.{created['name']}"
        self._heard_at = self._now()

    async def doubt(self) -> str:
        """Wait until this consumer can no longer be relied upon; why."""
        while self._doubt is None:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._doubtful.wait()
            except TimeoutError:
                if self._now() - self._heard_at > SILENCE_S:
                    await asyncio.sleep(0.1)  # were we the ones who did not listen?
                if self._now() - self._heard_at > SILENCE_S:
                    self._distrust("no heartbeat")
        return self._doubt

    async def answer_questions(self) -> None:
        """Let the server send more, once what it sent before it asked has been taken."""
        while self._questions and self._questions[0][0] <= self._sink.taken:
            _, reply = self._questions.popleft()
            try:
                await self._session.client.publish(reply)
            except errors.Error:
                return  # the session is over, and with it this consumer

    async def stop(self) -> None:
        """Tell the server, as far as it listens."""
        self._distrust("stopped")
        self._session.unwatch(self._lost)
        if self._subscription is None or not self._session.live:
            return
        try:
            await self._subscription.unsubscribe()
            if self._place is not None:
                nobody = self._session.client.new_inbox()
                await self._session.client.publish(f"$JS.API.CONSUMER.DELETE.{self._place}", reply=nobody)
        except errors.Error:
            return  # it is forgotten after a while

    async def _arrive(self, message: Msg) -> None:
        self._heard_at = self._now()
        if self._doubt is not None:
            return
        if not message.reply.startswith(_DELIVERED):
            await self._control(message)
            return
        tokens = message.reply.split(".")
        at = 5 if len(tokens) < _LONG_ACK_TOKENS else 7
        self._count += 1
        if int(tokens[at + 1]) != self._count:
            self._distrust(f"message {tokens[at + 1]} of the consumer came where {self._count} was due")
            return
        self._sink.put(int(tokens[at]), int(tokens[at + 2]) // 1000 / 1e6, message)

    async def _control(self, message: Msg) -> None:
        """A heartbeat says how much was sent; a flow control request waits until that has been taken."""
        headers = message.headers or {}
        if status(message) != "100":
            self._distrust(f"the server says {status(message)} {headers.get('Description', '')}")
            return
        if int(headers.get("Nats-Last-Consumer", 0)) > self._count:
            self._distrust(f"{headers['Nats-Last-Consumer']} messages were sent and {self._count} came")
            return
        reply = message.reply or headers.get("Nats-Consumer-Stalled")
        if reply and all(reply != asked for _, asked in self._questions):
            self._questions.append((self._sink.received, reply))
            await self.answer_questions()

    def _lost(self) -> None:
        self._distrust("connection lost")

    def _distrust(self, why: str) -> None:
        self._doubt = self._doubt or why
        self._doubtful.set()
