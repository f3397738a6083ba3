"""The loop of every executor that acts: take the newest decision, say so, check again, act, say how it ended."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.outcome import Outcome, Refused
from headrace.schemas.ack import AckStatus
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError

log = logging.getLogger(__name__)

Act = Callable[[Decision], Awaitable[Outcome | None]]  # None: stopped half-way, say nothing

_LOOK_FOR_STOP_EVERY_S = 0.5


async def follow(client: DecisionClient, act: Act, stop: asyncio.Event) -> None:
    """Carry out decisions, one at a time, until `stop`.

    While one is carried out newer ones may come: the newest is next, those between are never acted on. A decision that
    was not finished when we stop stays unsettled, so that the next life of the executor finds it again.
    """
    while not stop.is_set():
        decision = await client.wait(timeout=_LOOK_FOR_STOP_EVERY_S)
        if decision is None:
            continue
        try:
            await _carry_out(client, act, decision)
        except BusError as e:
            log.warning(
                "decision %d of %s: the bus is away, it is tried again: %s", decision.decision_id, decision.dgd, e
            )
            await asyncio.sleep(_LOOK_FOR_STOP_EVERY_S)
            client.give_back(decision)


async def _carry_out(client: DecisionClient, act: Act, decision: Decision) -> None:
    await client.accept(decision)
    refusal = await client.refusal(decision)  # no bus can fence a scaling call: look once more right before it
    if refusal is not None:
        await client.reject(decision, why=f"not acted on: {refusal.value}")
        return
    outcome = await _guarded(act, decision)
    if outcome is not None:
        await client.settle(decision, outcome)


async def _guarded(act: Act, decision: Decision) -> Outcome | None:
    try:
        return await act(decision)
    except Refused as e:
        return Outcome(AckStatus.REJECTED, str(e))
    except Exception as e:  # whatever an orchestrator's client raises, the executor lives and says so
        log.exception("decision %d of %s failed", decision.decision_id, decision.dgd)
        return Outcome(AckStatus.FAILED, f"{type(e).__name__}: {e}")
