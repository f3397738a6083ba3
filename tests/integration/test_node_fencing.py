"""One writer per DGD: who wins when several planners run, and who is no planner at all."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import pytest
import world
from bus_support import eventually
from nats_support import fresh_prefix, nats_server
from node_support import DGD, START, HandClock, Lab, Running, lab_on

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.decision import Decision
from headrace.schemas.errors import Fenced
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import ACKS, DECISIONS, PROPOSALS, STATE, Stream
from headrace.streams.runtime.node import TAKE_OVER_TRIES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path_factory.mktemp("nats"), store_bytes=1024 * 1024**3) as server:
        yield server


@pytest.fixture(params=["memory", "nats", "kafka"])
async def lab(request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    where = {"memory": None, "nats": "server", "kafka": "kafka"}[request.param]
    async with lab_on(where and request.getfixturevalue(where), fresh_prefix()) as lab:
        await lab.fleet()
        yield lab


async def places(lab: Lab) -> list[tuple[int, int]]:
    return [(d.epoch, d.decision_id) for d in await lab.decisions()]


async def test_a_planner_that_was_paused_finds_its_successor_and_ends_without_a_decision(lab: Lab) -> None:
    zombie_clock = HandClock()
    zombie = await (await lab.start(clock=zombie_clock)).started()
    lab.clock.move(START + 5)
    heir = await lab.node()
    position = await lab.ask(decode=3)
    await zombie.took(PROPOSALS, position)
    zombie_clock.move(START + 5)  # it would decide now
    assert isinstance(await zombie.ends(), Fenced)
    assert await lab.decisions() == []
    await heir.took(PROPOSALS, position)
    await heir.tick()
    assert await places(lab) == [(2, 0)]


async def test_a_planner_that_was_paused_between_its_snapshot_and_its_decision_adds_nothing(lab: Lab) -> None:
    zombie_clock = HandClock()
    bus = await lab.bus()
    zombie = await (await lab.start(records=bus, clock=zombie_clock)).started()
    await zombie.took(PROPOSALS, await lab.ask(decode=3))
    paused, go_on = asyncio.Event(), asyncio.Event()

    async def pause(record: Record) -> None:
        if isinstance(record, Decision):
            paused.set()
            await go_on.wait()

    bus.before = pause
    zombie_clock.move(START + 5)
    await paused.wait()
    lab.clock.move(START + 10)
    heir = await lab.node()
    assert await places(lab) == [(1, 0)]  # out of the snapshot, by the heir
    await heir.took(ACKS, await lab.ack((await lab.decisions())[0]))
    await lab.fleet(decode=3)
    await heir.took(PROPOSALS, await lab.ask(decode=4))
    await heir.tick()
    go_on.set()
    await eventually(lambda: zombie.task.done() or len(zombie.said) == 2)
    zombie_clock.move(START + 20)
    assert isinstance(await zombie.ends(), Fenced)
    assert await places(lab) == [(1, 0), (2, 1)]


async def test_of_two_that_start_at_the_same_moment_one_plans_and_the_other_ends_fenced(lab: Lab) -> None:
    await lab.ask(decode=3)
    buses = [await lab.bus(), await lab.bus()]
    both = [await lab.start(records=bus) for bus in buses]
    while not any(node.task.done() for node in both):
        await asyncio.sleep(0.1)
        lab.clock.move(lab.clock.at + 5)
    (loser,) = [node for node in both if node.task.done()]
    (winner,) = [node for node in both if not node.task.done()]
    assert isinstance(await loser.ends(), Fenced)
    said = len(winner.said)
    lab.clock.move(lab.clock.at + 5)
    await eventually(lambda: len(winner.said) > said)
    (decision,) = await lab.decisions()
    assert decision.decision_id == 0
    assert (await lab.state()).epoch == winner.node.planner.epoch != loser.node.planner.epoch


async def former_owner_that_ticks_in_every_start(lab: Lab, starts: int) -> tuple[Running, Running]:
    """A former owner, and a new one during whose first `starts` starts the former one writes."""
    former = await (await lab.start(clock=HandClock())).started()
    lab.clock.move(START + 500)
    await lab.fleet()
    bus = await lab.bus()
    left = starts

    async def tick_first(record: Record) -> None:
        nonlocal left
        if isinstance(record, PlannerState) and left:
            left -= 1
            await former.tick()

    bus.before = tick_first
    return former, await lab.start(records=bus)


async def test_a_former_owner_that_writes_while_its_heir_starts_is_read_once_more(lab: Lab) -> None:
    await lab.ask(decode=3)
    former, heir = await former_owner_that_ticks_in_every_start(lab, 2)
    await heir.started()
    assert heir.reports[0].epoch == 2
    former.clock.move(START + 1000)
    assert isinstance(await former.ends(), Fenced)
    assert await places(lab) == [(1, 0)]


async def test_an_heir_gives_up_where_the_former_owner_always_writes_first(lab: Lab) -> None:
    former, heir = await former_owner_that_ticks_in_every_start(lab, 99)
    assert isinstance(await heir.ends(), Fenced)
    assert len(former.said) == 1 + TAKE_OVER_TRIES
    await former.tick()


STRANGERS: dict[str, bytes] = {
    "garbage": b"\x00 junk",
    "nothing": b"",
    "json": b'{"schema": "something.else.v1"}',
    "another_record": encode(world.inventory(START, decode=9)),
}


@pytest.mark.parametrize("stream", [STATE, DECISIONS], ids=lambda s: s.name)
@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
async def test_a_stranger_is_no_new_owner(lab: Lab, stream: Stream, data: bytes) -> None:
    node = await lab.node()
    position = await lab.put(stream, data)
    await node.took(PROPOSALS, await lab.ask(decode=3))
    await node.tick()
    await node.tick()
    assert [d.decision_id for d in node.decisions] == [0]
    (letter,) = await lab.letters()
    assert (letter.stream, letter.position, letter.data, letter.reader) == (stream.name, position, data, "planner")
    assert (await lab.state()).epoch == 1
    await node.stopped()
    lab.clock.move(START + 20)
    assert (await lab.node()).reports[0].outstanding == 0


@pytest.mark.parametrize("stream", [STATE, DECISIONS], ids=lambda s: s.name)
async def test_an_emptied_stream_is_written_on(lab: Lab, stream: Stream) -> None:
    await lab.ask(decode=3)
    node = await lab.node()
    await lab.lose(stream)
    await node.took(ACKS, await lab.ack(node.decisions[0]))
    await lab.fleet(decode=3)
    await node.took(PROPOSALS, await lab.ask(decode=4))
    await node.tick()
    assert [d.decision_id for d in node.decisions] == [0, 1]
    assert (await lab.decisions())[-1] == node.decisions[-1]


def later_schema(data: bytes) -> bytes:
    return data.replace(b'.v1"', b'.v2"')


@pytest.mark.parametrize("rewrite", [bytes, later_schema])
async def test_a_snapshot_of_another_owner_fences_whatever_its_version(
    lab: Lab, rewrite: Callable[[bytes], bytes]
) -> None:
    node = await lab.node()
    await lab.put(STATE, rewrite(encode(await lab.state())))
    lab.clock.move(START + 5)
    assert isinstance(await node.ends(), Fenced)
    assert await lab.letters() == []


async def test_a_decision_of_another_writer_fences_and_is_adopted_at_the_next_start(lab: Lab) -> None:
    await lab.ask(decode=3)
    node = await lab.node()
    (ours,) = node.decisions
    await node.took(ACKS, await lab.ack(ours))
    theirs = msgspec.structs.replace(ours, epoch=5, decision_id=1, targets={"prefill": 2, "decode": 2})
    await lab.records.publish(theirs)
    await lab.fleet(decode=3)
    await node.took(PROPOSALS, await lab.ask(decode=4))
    lab.clock.move(START + 5)
    assert isinstance(await node.ends(), Fenced)
    lab.clock.move(START + 10)
    again = await lab.node()
    report = again.reports[0]
    assert (report.epoch, report.outstanding) == (6, 1)
    last = await lab.records.bus.last(DECISIONS, DGD)
    assert last is not None
    assert last.data == encode(theirs)
