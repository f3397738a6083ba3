"""Executor that does nothing: it says what it would do. A tap by default, so that it may run beside one that acts.

It acks nothing unless it is told to reject: an ack of a bystander would settle the decision under the hands of the
executor that carries it out. Alone, without acks, the planner waits `ack_timeout` for each decision.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.gate import DecisionGate, Refusal
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Role
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError
from headrace.schemas.streams import DECISIONS

log = logging.getLogger(__name__)

MESSAGE = "dry run"
_LOOK_FOR_STOP_EVERY_S = 0.5


class DryRunExecutor:
    """Says the newest decision of the client's DGD, and each that comes; `say` gets a line of text for each.

    The client lends its bus, DGD and name; it is not opened.
    """

    def __init__(self, client: DecisionClient, *, say: Callable[[str], None] = log.info, reject: bool = False) -> None:
        self._records = client.records
        self._executor = client.executor
        self._gate = DecisionGate(client.dgd)
        self._say = say
        self._reject = reject

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the decisions until `stop`."""
        last = await self._records.bus.last(DECISIONS, self._gate.dgd)
        reader = await self._records.read(DECISIONS, self._gate.dgd, after=0 if last is None else last.position - 1)
        try:
            while not stop.is_set():
                for record, _ in await reader.next(timeout=_LOOK_FOR_STOP_EVERY_S):
                    assert isinstance(record, Decision)
                    await self.look_at(record)
        finally:
            await reader.close()

    async def look_at(self, decision: Decision) -> Refusal | None:
        """Say what would be done. Returns why nothing would."""
        now = self._records.clock()
        refusal = self._gate.offer(decision) or self._gate.refusal(decision, now)
        self._say(line(decision, refusal))
        if refusal is None and self._reject:
            await self._publish_rejection(decision, now)
        return refusal

    async def _publish_rejection(self, decision: Decision, now: float) -> None:
        ack = DecisionAck(
            dgd=decision.dgd,
            epoch=decision.epoch,
            decision_id=decision.decision_id,
            status=AckStatus.REJECTED,
            executor=self._executor,
            at=now,
            message=MESSAGE,
        )
        try:
            await self._records.publish(ack)
        except BusError as e:
            log.warning("decision %d of %s could not be rejected: %s", decision.decision_id, decision.dgd, e)


def line(decision: Decision, refusal: Refusal | None) -> str:
    """`ml/llama decision 7 of epoch 2: would scale decode 2 -> 4 (scale_up), prefill stays 1 (no_change)`."""
    roles = ", ".join(_role(decision, role) for role in sorted(decision.targets))
    verb = "would scale" if refusal is None else f"ignored ({refusal.value}):"
    return f"{decision.dgd} decision {decision.decision_id} of epoch {decision.epoch}: {verb} {roles}"


def _role(decision: Decision, role: Role) -> str:
    target, previous = decision.targets[role], decision.previous.get(role)
    change = f"stays {target}" if previous == target else f"{'?' if previous is None else previous} -> {target}"
    return f"{role} {change} ({decision.reasons.get(role, 'no reason')})"
