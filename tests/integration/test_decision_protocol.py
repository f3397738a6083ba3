"""The executor that docs/decision-protocol.md prints, run as it is printed, against a real NATS server."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats_support import nats_server

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.nats import NatsBus, NatsOptions
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.codec import encode
from headrace.schemas.decision import Decision
from headrace.schemas.examples import DECISION
from headrace.schemas.streams import ACKS, DECISIONS, STREAMS

PAGE = Path(__file__).parents[2] / "docs" / "decision-protocol.md"
DGD = DECISION.dgd
PATIENCE_S = 20.0

Scale = Callable[[dict[str, int]], Awaitable[dict[str, int]]]


def printed_executor() -> Callable[[str, Scale], Awaitable[None]]:
    """The function `run` of the page's program."""
    (program,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "run(" in block]
    names: dict[str, Any] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    run: Callable[[str, Scale], Awaitable[None]] = names["run"]
    return run


def decision(decision_id: int, **changes: Any) -> Decision:
    now = time.time()
    fresh = {"decision_id": decision_id, "issued_at": now, "expires_at": now + 600.0}
    return msgspec.structs.replace(DECISION, **(fresh | changes))


class Lab:
    """A server with the streams on it, the planner's side of it, and the printed executor."""

    def __init__(self, url: str, records: RecordBus) -> None:
        self.url = url
        self.records = records
        self.scaled: list[dict[str, int]] = []
        self.breaks = False

    async def scale(self, targets: dict[str, int]) -> dict[str, int]:
        self.scaled.append(targets)
        if self.breaks:
            raise RuntimeError("no quota")
        return targets

    async def acks(self, until: int) -> list[tuple[int, AckStatus]]:
        """Acks by decision and status, read until decision `until` is settled."""
        found: list[tuple[int, AckStatus]] = []
        reader = await self.records.read(ACKS, DGD, after=0)
        async with asyncio.timeout(PATIENCE_S):
            while not any(number == until and status.settles for number, status in found):
                for record, _ in await reader.next(timeout=1.0):
                    assert isinstance(record, DecisionAck)
                    assert (record.epoch, record.executor) == (DECISION.epoch, "my-scaler")
                    found.append((record.decision_id, record.status))
        await reader.close()
        return found


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    with nats_server(tmp_path) as server:
        bus = NatsBus(NatsOptions.from_url(server.url))
        await bus.open()
        await bus.ensure(STREAMS.values())
        yield Lab(server.url, RecordBus(bus, "planner", time.time))
        await bus.close()


@pytest.fixture
async def executor(lab: Lab) -> AsyncIterator[None]:
    running = asyncio.ensure_future(printed_executor()(lab.url, lab.scale))
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


ACCEPTED, APPLIED, FAILED, EXPIRED = AckStatus.ACCEPTED, AckStatus.APPLIED, AckStatus.FAILED, AckStatus.EXPIRED


@pytest.mark.usefixtures("executor")
async def test_a_decision_is_accepted_and_then_applied_with_the_counts(lab: Lab) -> None:
    await lab.records.publish(decision(0))
    assert await lab.acks(until=0) == [(0, ACCEPTED), (0, APPLIED)]
    assert lab.scaled == [DECISION.targets]
    last = await lab.records.last(ACKS, DGD)
    assert last is not None
    assert isinstance(last[0], DecisionAck)
    assert last[0].counts == DECISION.targets


@pytest.mark.usefixtures("executor")
async def test_what_does_not_work_is_said_and_the_next_decision_is_carried_out(lab: Lab) -> None:
    lab.breaks = True
    await lab.records.publish(decision(0))
    assert await lab.acks(until=0) == [(0, ACCEPTED), (0, FAILED)]
    lab.breaks = False
    await lab.records.publish(decision(1))
    assert (await lab.acks(until=1))[2:] == [(1, ACCEPTED), (1, APPLIED)]


@pytest.mark.usefixtures("executor")
async def test_repeated_older_advisory_expired_and_requeued_decisions_scale_nothing(lab: Lab) -> None:
    first = decision(5)
    await lab.records.publish(first)
    await lab.acks(until=5)
    await lab.records.publish(first, message_id="the same again, beyond the window of duplicates")
    await lab.records.publish(decision(4, targets={"decode": 9}))
    await lab.records.publish(decision(6, epoch=DECISION.epoch - 1, targets={"decode": 9}))
    await lab.records.publish(decision(7, advisory=True, targets={"decode": 9}))
    requeued = decision(8, targets={"decode": 9})
    headers = {"headrace-requeued": "1"}
    await lab.records.bus.publish(Outgoing(DECISIONS.name, DGD, encode(requeued), headers, "requeued"))
    await lab.records.publish(decision(9, expires_at=time.time() - 1.0, targets={"decode": 9}))
    assert await lab.acks(until=9) == [(5, ACCEPTED), (5, APPLIED), (9, EXPIRED)]
    assert lab.scaled == [DECISION.targets]


async def test_an_executor_that_starts_finds_the_newest_decision_and_no_settled_one(lab: Lab) -> None:
    for number in range(3):
        await lab.records.publish(decision(number, targets={"decode": number}))
    for _ in range(2):
        running = asyncio.ensure_future(printed_executor()(lab.url, lab.scale))
        assert await lab.acks(until=2) == [(2, ACCEPTED), (2, APPLIED)]
        await asyncio.sleep(0.3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert lab.scaled == [{"decode": 2}]
