"""DecisionClient: the newest decision even if it was there before, acks that arrive, and nothing stale."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from bus_support import eventually, kept, memory_records
from decision_support import DGD, ack, decision

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.memory import MemoryBroker
from headrace.connectors.bus.records import REQUEUED, RecordBus
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.gate import Refusal
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.codec import encode
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError
from headrace.schemas.streams import ACKS, DEADLETTERS


class World:
    """A bus in memory, its clock, and the planner's side of it."""

    def __init__(self) -> None:
        self.now = 1100.0
        self.broker = MemoryBroker(lambda: self.now)
        self.planner: RecordBus

    async def records(self, name: str) -> RecordBus:
        return await memory_records(self.broker.clock, name, self.broker)

    async def client(self, executor: str = "x", patience_s: float = 60.0) -> DecisionClient:
        client = DecisionClient(await self.records(executor), DGD, executor, patience_s=patience_s)
        await client.open()
        return client

    async def acks(self) -> list[DecisionAck]:
        return [record for record in await kept(self.planner, ACKS) if isinstance(record, DecisionAck)]

    async def statuses(self) -> list[tuple[int, AckStatus]]:
        return [(found.decision_id, found.status) for found in await self.acks()]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.planner = await world.records("planner")
    yield world
    await world.planner.bus.close()


async def test_wait_returns_a_decision_that_was_there_before(world: World) -> None:
    """Dynamo's VirtualConnectorClient.wait returns at the next change only, and misses it."""
    await world.planner.publish(decision(4))
    client = await world.client()
    assert await client.wait(timeout=5) == decision(4)
    await client.close()


async def test_wait_returns_a_decision_that_comes(world: World) -> None:
    client = await world.client()
    waiting = asyncio.create_task(client.wait(timeout=20))
    await world.planner.publish(decision(0))
    assert await waiting == decision(0)
    await client.close()


async def test_wait_without_a_decision_ends_with_its_timeout(world: World) -> None:
    client = await world.client()
    assert await client.wait(timeout=0.01) is None
    await client.close()


async def test_a_decision_is_returned_once(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    await client.wait(timeout=5)
    assert await client.wait(timeout=0.01) is None
    await client.close()


async def test_of_many_decisions_that_were_there_only_the_newest_is_returned(world: World) -> None:
    for n in range(200):
        await world.planner.publish(decision(n))
    client = await world.client()
    assert await client.wait(timeout=5) == decision(199)
    await client.close()


async def test_a_decision_of_another_dgd_is_not_returned(world: World) -> None:
    await world.planner.publish(decision(4, dgd="ml/other"))
    client = await world.client()
    assert await client.wait(timeout=0.01) is None
    await client.close()


async def test_a_settled_decision_is_not_returned_to_a_restarted_executor(world: World) -> None:
    await world.planner.publish(decision(4))
    await world.planner.publish(ack(4, status=AckStatus.FAILED))
    client = await world.client()
    assert await client.wait(timeout=0.01) is None
    await client.close()


async def test_a_decision_settled_before_a_late_accepted_ack_stays_settled(world: World) -> None:
    await world.planner.publish(decision(4))
    await world.planner.publish(ack(4))
    await world.planner.publish(ack(4, status=AckStatus.ACCEPTED, executor="slow"))
    client = await world.client()
    assert await client.wait(timeout=0.01) is None
    await client.close()


async def test_a_decision_that_was_only_accepted_is_returned_to_a_restarted_executor(world: World) -> None:
    await world.planner.publish(decision(4))
    first = await world.client()
    found = await first.wait(timeout=5)
    assert found is not None
    await first.accept(found)
    await first.close()
    second = await world.client()
    assert await second.wait(timeout=5) == decision(4)
    await second.close()


async def test_the_newest_by_epoch_is_returned_though_a_former_owner_wrote_last(world: World) -> None:  # T30
    await world.planner.publish(decision(4, epoch=2))
    await world.planner.publish(decision(9, epoch=1))
    client = await world.client()
    assert await client.wait(timeout=5) == decision(4, epoch=2)
    await client.close()


async def test_a_former_owner_cannot_interrupt(world: World) -> None:  # T30
    client = await world.client()
    await world.planner.publish(decision(4, epoch=2))
    assert await client.wait(timeout=5) == decision(4, epoch=2)
    await world.planner.publish(decision(5, epoch=1))
    assert await client.wait(timeout=0.02) is None
    assert await client.still_current(decision(4, epoch=2))
    await client.close()


async def test_an_expired_decision_is_acked_as_expired_once(world: World) -> None:
    await world.planner.publish(decision(4))
    world.now = 2010.0
    client = await world.client()
    assert await client.wait(timeout=0.01) is None
    assert await client.wait(timeout=0.01) is None
    await client.close()
    [found] = await world.acks()
    assert (found.decision_id, found.status, found.executor) == (4, AckStatus.EXPIRED, "x")
    assert "10.0 s after it expired" in found.message


async def test_an_expired_decision_is_acked_once_though_our_ack_is_not_read_back_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecisionClient, "_on_ack", lambda *_: None)
    await world.planner.publish(decision(4))
    client = await world.client()
    for world.now in (2010.0, 2020.0):
        assert await client.wait(timeout=0.01) is None
    await client.close()
    assert await world.statuses() == [(4, AckStatus.EXPIRED)]


async def test_a_decision_that_expires_in_somebodys_hands_is_theirs_to_ack(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    assert await client.wait(timeout=5) == decision(4)
    world.now = 2010.0
    assert await client.wait(timeout=0.01) is None
    await client.complete(decision(4))
    await client.close()
    assert await world.statuses() == [(4, AckStatus.APPLIED)]


async def test_an_expired_decision_that_is_settled_or_advisory_is_not_acked(world: World) -> None:
    await world.planner.publish(decision(4))
    await world.planner.publish(ack(4))
    await world.planner.publish(decision(5, advisory=True))
    world.now = 2010.0
    client = await world.client()
    assert await client.wait(timeout=0.01) is None
    await client.close()
    assert await world.statuses() == [(4, AckStatus.APPLIED)]


async def test_an_advisory_decision_is_not_returned(world: World) -> None:
    client = await world.client()
    await world.planner.publish(decision(4, advisory=True))
    assert await client.wait(timeout=0.02) is None
    await client.close()


async def test_a_decision_from_the_dead_letters_is_not_acted_on(world: World) -> None:
    headers = {REQUEUED: "1"}
    await world.planner.bus.publish(Outgoing("decisions", DGD, encode(decision(4)), headers, "again"))
    client = await world.client()
    assert await client.wait(timeout=0.02) is None
    await client.close()


async def test_acks_say_who_what_and_with_which_counts(world: World) -> None:
    await world.planner.publish(decision(4, epoch=3))
    client = await world.client("scaler")
    found = await client.wait(timeout=5)
    assert found is not None
    world.now = 1234.5
    await client.accept(found)
    await client.complete(found, counts={"prefill": 1, "decode": 6}, why="in 3 s")
    await client.close()
    accepted, applied = await world.acks()
    assert (accepted.status, applied.status) == (AckStatus.ACCEPTED, AckStatus.APPLIED)
    assert (applied.epoch, applied.decision_id, applied.executor, applied.at) == (3, 4, "scaler", 1234.5)
    assert (applied.counts, applied.message) == ({"prefill": 1, "decode": 6}, "in 3 s")


async def test_rejecting_and_failing_settle_with_a_reason(world: World) -> None:  # T36, dynamo#8774
    client = await world.client()
    await world.planner.publish(decision(0))
    await client.reject(decision(0), why="over budget")
    await world.planner.publish(decision(1))
    await client.fail(decision(1), why="no such deployment")
    assert await client.wait(timeout=0.02) is None
    await client.close()
    assert [(a.status, a.message) for a in await world.acks()] == [
        (AckStatus.REJECTED, "over budget"),
        (AckStatus.FAILED, "no such deployment"),
    ]


async def test_still_current_sees_what_the_bus_has_though_it_was_not_delivered_yet(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    found = await client.wait(timeout=5)
    assert found is not None
    assert await client.still_current(found)
    await world.planner.publish(decision(5))
    assert await client.refusal(found) is Refusal.SUPERSEDED
    await client.close()


async def test_still_current_refuses_a_decision_of_a_former_owner(world: World) -> None:  # T30
    await world.planner.publish(decision(4, epoch=1))
    client = await world.client()
    found = await client.wait(timeout=5)
    assert found is not None
    await world.planner.publish(decision(5, epoch=2))
    assert await client.refusal(found) is Refusal.STALE_EPOCH
    await client.close()


async def test_still_current_refuses_what_another_executor_has_settled(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    found = await client.wait(timeout=5)
    assert found is not None
    await world.planner.publish(ack(4))
    assert await client.refusal(found) is Refusal.SETTLED
    await client.close()


async def test_still_current_refuses_what_has_expired_in_our_hands(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    found = await client.wait(timeout=5)
    assert found is not None
    world.now = 2000.0
    assert await client.refusal(found) is Refusal.EXPIRED
    await client.close()


async def test_a_newer_decision_that_cannot_be_read_stops_the_older_one(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    found = await client.wait(timeout=5)
    assert found is not None
    await world.planner.bus.publish(Outgoing("decisions", DGD, b'{"schema": "headrace.decision.v9"}'))
    assert not await client.still_current(found)
    await client.close()


async def test_when_the_bus_cannot_tell_still_current_raises(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    found = await client.wait(timeout=5)
    assert found is not None
    world.broker.available = False
    with pytest.raises(BusError):
        await client.still_current(found)
    world.broker.available = True
    await client.close()


async def test_a_decision_that_is_given_back_is_returned_again(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    found = await client.wait(timeout=5)
    assert found is not None
    client.give_back(found)
    assert await client.wait(timeout=5) == decision(4)
    await client.close()


async def test_an_ack_is_tried_until_the_bus_takes_it(world: World) -> None:
    await world.planner.publish(decision(4))
    client = await world.client()
    world.broker.available = False
    completing = asyncio.create_task(client.complete(decision(4)))
    await asyncio.sleep(0.02)
    assert not completing.done()
    world.broker.available = True
    await completing
    await client.close()
    assert await world.statuses() == [(4, AckStatus.APPLIED)]


async def test_an_ack_that_the_bus_never_takes_raises_when_patience_ends(world: World) -> None:
    client = await world.client(patience_s=0.1)
    world.broker.available = False
    with pytest.raises(BusError):
        await client.complete(decision(4))
    world.broker.available = True
    await client.close()


async def test_a_bad_record_does_not_stop_the_following(world: World) -> None:
    client = await world.client()
    await world.planner.bus.publish(Outgoing("decisions", DGD, b"garbage"))
    await world.planner.bus.publish(Outgoing("acks", DGD, b"garbage"))
    await world.planner.publish(decision(4))
    assert await client.wait(timeout=5) == decision(4)
    await client.close()
    assert (await world.planner.bus.info(DEADLETTERS)).messages == 2


async def test_a_bad_newest_record_does_not_stop_the_start(world: World) -> None:
    await world.planner.publish(decision(4))
    await world.planner.bus.publish(Outgoing("acks", DGD, b"garbage"))
    client = await world.client()
    assert await client.wait(timeout=5) == decision(4)
    await client.close()


async def test_iteration_gives_each_new_decision_and_ends_when_the_client_is_closed(world: World) -> None:
    seen: list[Decision] = []
    client = await world.client()

    async def consume() -> None:
        async for found in client:
            seen.append(found)
            await client.complete(found, counts=found.targets)

    consuming = asyncio.create_task(consume())
    for n in range(3):
        await world.planner.publish(decision(n))
        await eventually(lambda n=n: len(seen) > n)  # type: ignore[misc]
    await client.close()
    await consuming
    assert seen == [decision(n) for n in range(3)]
    assert await world.statuses() == [(n, AckStatus.APPLIED) for n in range(3)]


async def test_decisions_that_came_while_one_was_carried_out_are_passed_over_for_the_newest(world: World) -> None:
    client = await world.client()
    await world.planner.publish(decision(0))
    assert await client.wait(timeout=5) == decision(0)
    for n in (1, 2, 3):
        await world.planner.publish(decision(n))
    await eventually(lambda: client.newest == decision(3))
    assert await client.wait(timeout=5) == decision(3)
    await client.close()


async def test_opening_and_closing_twice_does_no_harm(world: World) -> None:
    client = await world.client()
    await client.open()
    await client.close()
    await client.close()
    assert await client.wait(timeout=5) is None


async def test_a_client_cannot_be_opened_without_a_bus(world: World) -> None:
    records = await world.records("x")
    world.broker.available = False
    client = DecisionClient(records, DGD, "x")
    with pytest.raises(BusError):
        await client.open()
    world.broker.available = True
    await client.open()
    await client.close()
