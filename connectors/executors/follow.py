"""The loop of every executor that acts: take the newest decision, say so, check again, act, say how it ended."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.gate import Refusal
from headrace.connectors.executors.outcome import Outcome, Refused
from headrace.schemas.ack import AckStatus
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError

log = logging.getLogger(__name__)

Act = Callable[[Decision], Awaitable[Outcome | None]]  # None: stopped half-way, say nothing

_LOOK_FOR_STOP_EVERY_S = 0.5
_WHILE_THE_BUS_IS_AWAY_S = 1.0


async def follow(client: DecisionClient, act: Act, stop: asyncio.Event) -> None:
    """Open the client and carry out decisions, one at a time, until `stop`; then close it.

    While one is carried out newer ones may come: the newest is next, those between are never acted on. A decision that
    was not finished when we stop stays unsettled, so that the next life of the executor finds it again.
    """
    try:
        while not stop.is_set():
            try:
                await client.open()
                await _next(client, act)
            except BusError as e:
                log.warning("decisions of %s: the bus is away, trying again: %s", client.dgd, e)
                await _pause(stop)
    finally:
        await client.close()


async def _next(client: DecisionClient, act: Act) -> None:
    decision = await client.wait(timeout=_LOOK_FOR_STOP_EVERY_S)
    if decision is None:
        return
    try:
        await _carry_out(client, act, decision)
    except BusError:
        client.give_back(decision)
        raise


async def _carry_out(client: DecisionClient, act: Act, decision: Decision) -> None:
    await client.accept(decision)
    refusal = await client.refusal(decision)  # no bus can fence a scaling call: look once more right before it
    outcome = await _guarded(act, decision) if refusal is None else _refused(refusal)
    if outcome is not None:
        await client.settle(decision, outcome)


def _refused(refusal: Refusal) -> Outcome | None:
    """What to say about a decision that went stale in our hands. Nothing where another executor has settled it."""
    if refusal is Refusal.SETTLED:
        return None
    status = AckStatus.EXPIRED if refusal is Refusal.EXPIRED else AckStatus.REJECTED
    return Outcome(status, f"not acted on: {refusal.value}")


async def _guarded(act: Act, decision: Decision) -> Outcome | None:
    try:
        return await act(decision)
    except Refused as e:
        return Outcome(AckStatus.REJECTED, str(e))
    except Exception as e:  # whatever an orchestrator's client raises, the executor lives and says so
        log.exception("decision %d of %s failed", decision.decision_id, decision.dgd)
        return Outcome(AckStatus.FAILED, f"{type(e).__name__}: {e}")


async def _pause(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_WHILE_THE_BUS_IS_AWAY_S):
            await stop.wait()
