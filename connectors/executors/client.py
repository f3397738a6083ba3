"""DecisionClient: the decisions of one DGD for whoever carries them out, and the acks that say how they ended.

    async with DecisionClient(records, "ml/llama-70b", "my-scaler") as client:
        async for decision in client:
            await client.accept(decision)
            if await client.still_current(decision):
                await scale_to(decision.targets)
                await client.complete(decision, counts=decision.targets)

The stream and its JSON are the contract (`docs/executors.md`); this class is a convenience for Python.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType

from headrace.connectors.bus.base import Message
from headrace.connectors.bus.records import REQUEUED, RecordBus, RecordReader
from headrace.connectors.executors.gate import DecisionGate, Refusal, place
from headrace.connectors.executors.outcome import Outcome
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Record, Role
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError, RecordError
from headrace.schemas.streams import ACKS, DECISIONS, Stream

log = logging.getLogger(__name__)

Handle = Callable[[Record, Message], None]

_RECENT = 64  # positions before the newest that are read at the start: the newest by epoch may not be the last written
_CATCH_UP_S = 2.0
_LONGEST_WAIT_S = 2.0
_LONGEST_MESSAGE = 2000


class DecisionClient:
    """Open it with `async with`, or with :meth:`open` and :meth:`close`. One consumer at a time.

    Each decision is returned once in the client's life, and only while it is the newest, unsettled, unexpired and not
    advisory; what is older, repeated or of a former owner is passed over. `patience_s`: how long an ack is tried.
    """

    def __init__(self, records: RecordBus, dgd: str, executor: str, *, patience_s: float = 60.0) -> None:
        self.dgd = dgd
        self.executor = executor
        self.records = records
        self._patience_s = patience_s
        self._gate = DecisionGate(dgd)
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._readers: list[RecordReader] = []
        self._followers: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Learn the newest decision and which are settled, then follow both streams. Idempotent. Raises BusError."""
        if self._followers:
            return
        parts = ((DECISIONS, self._on_decision), (ACKS, self._on_ack))
        try:
            for stream, handle in parts:
                self._readers.append(await self._caught_up(stream, handle))
        except BusError:
            await self._close_readers()
            raise
        for reader, (stream, handle) in zip(self._readers, parts, strict=True):
            self._followers.append(asyncio.create_task(self._follow(reader, handle), name=f"follow {stream.name}"))

    async def close(self) -> None:
        """Stop following; `wait` and iteration end. Idempotent."""
        self._closing.set()
        self._changed.set()
        await self._close_readers()
        followers, self._followers = self._followers, []
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    async def __aenter__(self) -> "DecisionClient":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def newest(self) -> Decision | None:
        """The newest decision that was seen, whether it may be acted on or not."""
        return self._gate.newest

    async def __aiter__(self) -> AsyncIterator[Decision]:
        """Decisions to act on, until the client is closed."""
        while not self._closing.is_set():
            decision = await self.wait()
            if decision is not None:
                yield decision

    async def wait(self, timeout: float | None = None) -> Decision | None:
        """The decision to act on, also when it was there before. None when `timeout` seconds pass, or after `close`.

        A decision that has expired before anyone took it is acked as expired and not returned. Raises BusError when
        that cannot be said.
        """
        give_up_at = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while not self._closing.is_set():
            self._changed.clear()
            await self._say_expired()
            decision = self._gate.take(self.records.clock())
            if decision is not None:
                return decision
            try:
                async with asyncio.timeout_at(give_up_at):
                    await self._changed.wait()
            except TimeoutError:
                return None
        return None

    def give_back(self, decision: Decision) -> None:
        """It could not be tried: :meth:`wait` shall return it again while it is current."""
        self._gate.give_back(decision)
        self._changed.set()

    async def still_current(self, decision: Decision) -> bool:
        """Ask right before acting: is it the newest, unsettled and unexpired? Raises BusError: then do not act."""
        return await self.refusal(decision) is None

    async def refusal(self, decision: Decision) -> Refusal | None:
        """Why a decision must not be acted on now, or None. Looks at the bus. Raises BusError when it cannot."""
        for stream, handle in ((DECISIONS, self._on_decision), (ACKS, self._on_ack)):
            try:
                last = await self.records.last(stream, self.dgd)
            except RecordError as e:
                log.warning("%s: the newest record on %s cannot be read, not acting: %s", self.dgd, stream.name, e)
                return Refusal.SUPERSEDED
            if last is not None:
                handle(*last)
        return self._gate.refusal(decision, self.records.clock())

    async def accept(self, decision: Decision, *, counts: Mapping[Role, int] | None = None, why: str = "") -> None:
        """It is being carried out. Settles nothing; may be repeated to show progress."""
        await self._ack(decision, Outcome(AckStatus.ACCEPTED, why, counts or {}))

    async def complete(self, decision: Decision, *, counts: Mapping[Role, int] | None = None, why: str = "") -> None:
        """The orchestrator shows the counts."""
        await self._ack(decision, Outcome(AckStatus.APPLIED, why, counts or {}))

    async def reject(self, decision: Decision, *, why: str, counts: Mapping[Role, int] | None = None) -> None:
        """Refused on purpose: over budget, not ready. A normal outcome; the planner goes on."""
        await self._ack(decision, Outcome(AckStatus.REJECTED, why, counts or {}))

    async def fail(self, decision: Decision, *, why: str, counts: Mapping[Role, int] | None = None) -> None:
        """Tried, and did not work."""
        await self._ack(decision, Outcome(AckStatus.FAILED, why, counts or {}))

    async def settle(self, decision: Decision, outcome: Outcome) -> None:
        """Any of the above, as a value."""
        await self._ack(decision, outcome)

    async def _say_expired(self) -> None:
        """Ack the newest decision as expired when it is, unless somebody was given it."""
        decision, now = self._gate.newest, self.records.clock()
        if decision is None or place(decision) == self._gate.taken:
            return
        if self._gate.refusal(decision, now) is Refusal.EXPIRED:
            late_s = now - decision.expires_at
            await self._ack(decision, Outcome(AckStatus.EXPIRED, f"found {late_s:.1f} s after it expired"))

    async def _ack(self, decision: Decision, outcome: Outcome) -> None:
        """Publish an ack; tries again, with the same record, for `patience_s`. Raises BusError after that."""
        ack = DecisionAck(
            dgd=decision.dgd,
            epoch=decision.epoch,
            decision_id=decision.decision_id,
            status=outcome.status,
            executor=self.executor,
            at=self.records.clock(),
            counts=dict(outcome.counts),
            message=outcome.message[:_LONGEST_MESSAGE],
        )
        loop = asyncio.get_running_loop()
        give_up_at, wait_s = loop.time() + self._patience_s, 0.05
        while True:
            try:
                await self.records.publish(ack)
                break
            except BusError as e:
                if self._closing.is_set() or loop.time() + wait_s > give_up_at:
                    raise
                log.warning("ack %s of decision %d not stored yet: %s", ack.status, ack.decision_id, e)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        self._gate.settle(ack)

    def _on_decision(self, record: Record, message: Message) -> None:
        assert isinstance(record, Decision)
        if REQUEUED in message.headers:
            log.warning("decision %d of %s was a dead letter: not acted on", record.decision_id, record.dgd)
            return
        refusal = self._gate.offer(record)
        if refusal in (Refusal.CONFLICTING, Refusal.STALE_EPOCH):
            log.warning(
                "decision %d of epoch %d for %s ignored: %s", record.decision_id, record.epoch, record.dgd, refusal
            )

    def _on_ack(self, record: Record, message: Message) -> None:
        assert isinstance(record, DecisionAck)
        self._gate.settle(record)

    async def _caught_up(self, stream: Stream, handle: Handle) -> RecordReader:
        """A reader that has read the newest records of the DGD, and goes on from there."""
        last = await self.records.bus.last(stream, self.dgd)
        end = 0 if last is None else last.position
        reader = await self.records.read(stream, self.dgd, after=max(0, end - _RECENT))
        while reader.position < end:
            before = reader.position
            for record, message in await reader.next(timeout=_CATCH_UP_S):
                handle(record, message)
            if reader.position == before:
                break  # it has gone meanwhile, or comes later
        return reader

    async def _close_readers(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            await reader.close()

    async def _follow(self, reader: RecordReader, handle: Handle) -> None:
        while not self._closing.is_set():
            try:
                found = await reader.next()
            except BusError as e:
                if self._closing.is_set():
                    return
                log.warning("%s: following is interrupted: %s", self.dgd, e)
                await asyncio.sleep(_LONGEST_WAIT_S)
                continue
            for record, message in found:
                handle(record, message)
            self._changed.set()
