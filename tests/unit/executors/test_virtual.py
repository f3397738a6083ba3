"""The virtual executor: targets are set, and applied is said only when the orchestrator shows them."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from bus_support import eventually, kept, memory_records
from decision_support import DGD, ack, decision

from headrace.connectors.bus.memory import MemoryBroker
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.outcome import Refused
from headrace.connectors.executors.virtual import VirtualExecutor, VirtualOptions, reached
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError, ConfigError
from headrace.schemas.streams import ACKS


class Fleet:
    """An orchestrator that reaches its targets when it is let."""

    def __init__(self) -> None:
        self.shown = {"prefill": 1, "decode": 1}
        self.asked: list[dict[str, int]] = []
        self.refuses: Exception | None = None
        self.quick = True

    async def set_targets(self, targets: Mapping[str, int]) -> None:
        self.asked.append(dict(targets))
        if self.refuses is not None:
            raise self.refuses
        if self.quick:
            self.shown = dict(targets)

    async def counts(self) -> Mapping[str, int]:
        return self.shown


class World:
    """A fleet, its executor, and the planner's side of the bus."""

    def __init__(self) -> None:
        self.now = 1100.0
        self.seconds = 0.0
        self.broker = MemoryBroker(lambda: self.now)
        self.fleet = Fleet()
        self.stop = asyncio.Event()
        self.planner: RecordBus
        self.running: asyncio.Task[None]

    async def begin(self) -> None:
        self.planner = await memory_records(self.broker.clock, "planner", self.broker)
        self.restart()

    def restart(self) -> None:
        self.stop = asyncio.Event()
        self.running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        records = await memory_records(self.broker.clock, "virtual", self.broker)
        client = DecisionClient(records, DGD, "virtual")
        options = VirtualOptions(timeout_s=60.0, poll_s=0.001)
        await VirtualExecutor(client, self.fleet, options, monotonic=lambda: self.seconds).run(self.stop)

    async def end(self) -> None:
        self.stop.set()
        await self.running

    async def acks(self) -> list[DecisionAck]:
        return [record for record in await kept(self.planner, ACKS) if isinstance(record, DecisionAck)]

    async def after(self, acks: int) -> list[DecisionAck]:
        await eventually(lambda: self.broker.log(ACKS.name).info().messages >= acks)
        return await self.acks()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.begin()
    yield world
    await world.end()
    await world.planner.bus.close()


async def test_a_decision_is_accepted_then_applied_with_the_counts_seen(world: World) -> None:
    await world.planner.publish(decision(4))
    accepted, applied = await world.after(acks=2)
    assert (accepted.status, applied.status) == (AckStatus.ACCEPTED, AckStatus.APPLIED)
    assert applied.counts == decision(4).targets
    assert world.fleet.asked == [decision(4).targets]


async def test_applied_is_not_said_before_the_counts_are_shown(world: World) -> None:  # T36, dynamo#10525
    world.fleet.quick = False
    await world.planner.publish(decision(4))
    await eventually(lambda: world.fleet.asked)
    await asyncio.sleep(0.02)
    assert [found.status for found in await world.acks()] == [AckStatus.ACCEPTED]
    world.fleet.shown = {**decision(4).targets, "encode": 3}
    _, applied = await world.after(acks=2)
    assert applied.status is AckStatus.APPLIED
    assert applied.counts["encode"] == 3


async def test_targets_that_are_refused_are_rejected_and_the_executor_lives(world: World) -> None:  # T36, dynamo#8774
    world.fleet.refuses = Refused("over quota: 9 of 8 GPUs")
    await world.planner.publish(decision(4))
    _, rejected = await world.after(acks=2)
    assert (rejected.status, rejected.message) == (AckStatus.REJECTED, "over quota: 9 of 8 GPUs")
    world.fleet.refuses = None
    await world.planner.publish(decision(5))
    assert (await world.after(acks=4))[-1].status is AckStatus.APPLIED


async def test_an_orchestrator_that_raises_fails_the_decision_and_the_executor_lives(world: World) -> None:
    world.fleet.refuses = RuntimeError("apiserver says 500")
    await world.planner.publish(decision(4))
    _, failed = await world.after(acks=2)
    assert (failed.status, failed.message) == (AckStatus.FAILED, "RuntimeError: apiserver says 500")
    assert not world.running.done()


async def test_targets_that_are_not_reached_in_time_fail_with_what_is_shown(world: World) -> None:
    world.fleet.quick = False
    await world.planner.publish(decision(4))
    await eventually(lambda: world.fleet.asked)
    world.seconds = 61.0
    _, failed = await world.after(acks=2)
    assert failed.status is AckStatus.FAILED
    assert "decode 1, not 6" in failed.message
    assert failed.counts == {"prefill": 1, "decode": 1}


async def test_a_newer_decision_ends_the_waiting_for_the_older_one(world: World) -> None:
    world.fleet.quick = False
    await world.planner.publish(decision(4))
    await eventually(lambda: world.fleet.asked)
    world.fleet.quick = True
    await world.planner.publish(decision(5))
    found = await world.after(acks=4)
    assert [(a.decision_id, a.status) for a in found] == [
        (4, AckStatus.ACCEPTED),
        (4, AckStatus.REJECTED),
        (5, AckStatus.ACCEPTED),
        (5, AckStatus.APPLIED),
    ]
    assert "superseded by decision 5" in found[1].message


async def test_a_repeated_older_or_advisory_decision_asks_for_nothing(world: World) -> None:
    await world.planner.publish(decision(4))
    await world.after(acks=2)
    await world.planner.publish(decision(3))
    await world.planner.publish(decision(9, epoch=0))
    await world.planner.publish(decision(4), message_id="again")
    await world.planner.publish(decision(5, advisory=True))
    await asyncio.sleep(0.02)
    assert world.fleet.asked == [decision(4).targets]
    assert len(await world.acks()) == 2


async def test_a_decision_in_hand_when_the_executor_stops_is_found_by_its_next_life(world: World) -> None:
    world.fleet.quick = False
    await world.planner.publish(decision(4))
    await eventually(lambda: world.fleet.asked)
    await world.end()
    assert [found.status for found in await world.acks()] == [AckStatus.ACCEPTED]
    world.fleet.quick = True
    world.now += 5.0
    world.restart()
    assert (await world.after(acks=3))[-1].status is AckStatus.APPLIED
    assert len(world.fleet.asked) == 2


async def test_a_decision_that_goes_stale_while_it_is_accepted_is_not_acted_on(world: World) -> None:  # T30
    """Nothing fences a scaling call: between taking a decision and acting on it, the executor looks again."""
    await world.end()
    records = await memory_records(world.broker.clock, "virtual", world.broker)
    client = DecisionClient(records, DGD, "virtual")
    accept = client.accept

    async def accept_slowly(found: Decision, **kwargs: object) -> None:
        await accept(found)
        if found.epoch == 1:
            await world.planner.publish(decision(5, epoch=2))

    client.accept = accept_slowly  # type: ignore[method-assign, assignment]
    await world.planner.publish(decision(4, epoch=1))
    world.stop = asyncio.Event()
    world.running = asyncio.create_task(VirtualExecutor(client, world.fleet).run(world.stop))
    found = await world.after(acks=4)
    assert world.fleet.asked == [decision(5).targets]
    assert (found[1].epoch, found[1].status, found[1].message) == (1, AckStatus.REJECTED, "not acted on: stale_epoch")


async def test_a_decision_that_another_executor_settles_meanwhile_is_left_to_it(world: World) -> None:
    await world.end()
    records = await memory_records(world.broker.clock, "virtual", world.broker)
    client = DecisionClient(records, DGD, "virtual")
    accept = client.accept

    async def accept_slowly(found: Decision, **kwargs: object) -> None:
        await accept(found)
        await world.planner.publish(ack(found.decision_id))

    client.accept = accept_slowly  # type: ignore[method-assign, assignment]
    await world.planner.publish(decision(4))
    world.stop = asyncio.Event()
    world.running = asyncio.create_task(VirtualExecutor(client, world.fleet).run(world.stop))
    await world.after(acks=2)
    await asyncio.sleep(0.02)
    assert world.fleet.asked == []
    assert [(a.executor, a.status) for a in await world.acks()] == [
        ("virtual", AckStatus.ACCEPTED),
        ("other", AckStatus.APPLIED),
    ]


async def test_a_decision_that_could_not_be_accepted_is_tried_again_when_the_bus_is_back(world: World) -> None:
    await world.end()
    records = await memory_records(world.broker.clock, "virtual", world.broker)
    client = DecisionClient(records, DGD, "virtual")
    accept, tries = client.accept, 0

    async def accept_at_last(found: Decision, **kwargs: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BusError("the broker is away")
        await accept(found)

    client.accept = accept_at_last  # type: ignore[method-assign, assignment]
    await world.planner.publish(decision(4))
    world.stop = asyncio.Event()
    world.running = asyncio.create_task(VirtualExecutor(client, world.fleet).run(world.stop))
    assert (await world.after(acks=2))[-1].status is AckStatus.APPLIED
    assert tries == 2


async def test_while_the_bus_is_away_the_executor_waits_and_then_acts(world: World) -> None:
    await world.end()
    world.broker.available = False
    records = await memory_records_without_ensure(world.broker)
    client = DecisionClient(records, DGD, "virtual", patience_s=0.1)
    world.stop = asyncio.Event()
    world.running = asyncio.create_task(VirtualExecutor(client, world.fleet).run(world.stop))
    await asyncio.sleep(0.02)
    assert not world.running.done()
    world.broker.available = True
    await world.planner.publish(decision(4))
    assert (await world.after(acks=2))[-1].status is AckStatus.APPLIED


async def memory_records_without_ensure(broker: MemoryBroker) -> RecordBus:
    """A record bus whose broker is away; it was open before."""
    broker.available = True
    records = await memory_records(broker.clock, "virtual", broker)
    broker.available = False
    return records


@pytest.mark.parametrize(
    ("targets", "counts", "expected"),
    [
        ({"decode": 2}, {"decode": 2, "prefill": 9}, True),
        ({"decode": 2}, {"decode": 3}, False),
        ({"decode": 0}, {}, False),
        ({"decode": 0}, {"decode": 0}, True),
        ({}, {}, True),
    ],
)
def test_targets_are_reached_when_each_is_shown(
    targets: dict[str, int], counts: dict[str, int], expected: bool
) -> None:
    assert reached(targets, counts) is expected


@pytest.mark.parametrize("options", [{"timeout_s": 0.0}, {"poll_s": 0.0}])
def test_times_that_cannot_be_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        VirtualOptions(**options)
