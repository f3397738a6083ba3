"""A planner while its bus is away: at the start, in the middle of a tick, when it is stopped. Nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import world
from bus_support import eventually
from nats_support import nats_server
from node_support import START, Lab, lab_on

from headrace.schemas.base import Record
from headrace.schemas.decision import Decision
from headrace.schemas.errors import BusError
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import FPM, PROPOSALS
from headrace.schemas.tick_report import TickReport
from headrace.streams.runtime import node as node_module
from headrace.streams.runtime import writer as writer_module


@pytest.fixture(params=["memory", "nats"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.05)
    monkeypatch.setattr(node_module, "RETRY_S", 0.05)
    if request.param == "memory":
        async with lab_on(None) as lab:
            yield lab
        return
    with nats_server(tmp_path) as server:
        async with lab_on(server) as lab:
            yield lab


async def test_a_bus_that_is_away_at_the_start_is_waited_for(lab: Lab) -> None:
    await lab.fleet()
    await lab.ask(decode=3)
    await lab.records.publish(world.batch("decode", START, world.fpm("11", 1), world.fpm("11", 2)))
    bus = await lab.bus()
    await lab.down()
    node = await lab.start(records=bus)
    await asyncio.sleep(0.5)
    assert not node.task.done()
    await lab.up()
    await node.started()
    assert node.reports[0].counters["fpm_seen"] == 2
    assert [d.decision_id for d in await lab.decisions()] == [0]


@pytest.mark.parametrize("before", [PlannerState, Decision], ids=["before_the_snapshot", "before_the_decision"])
async def test_a_bus_that_goes_away_in_a_tick_gets_it_when_it_is_back(lab: Lab, before: type[Record]) -> None:
    await lab.fleet()
    bus = await lab.bus()
    node = await (await lab.start(records=bus)).started()
    await node.took(PROPOSALS, await lab.ask(decode=3))
    down = asyncio.Event()

    async def go_down(record: Record) -> None:
        if isinstance(record, before) and not down.is_set():
            await lab.down()
            down.set()

    bus.before = go_down
    lab.clock.move(START + 5)
    await down.wait()
    await asyncio.sleep(0.5)
    assert len(node.said) == 1
    await lab.up()
    await eventually(lambda: len(node.said) == 2)
    await node.took(FPM, await lab.records.publish(world.batch("decode", START + 5, world.fpm("11", 1))))
    await node.tick()
    assert [d.decision_id for d in await lab.decisions()] == [0]
    slots = [r.tick for r in await lab.reports()]
    assert slots == list(range(slots[0], slots[0] + 3))
    assert (await lab.reports())[-1].counters["fpm_seen"] == 1


async def test_dead_letters_wait_for_the_bus(lab: Lab) -> None:
    node = await lab.node()
    batch = world.raw_batch("decode", START, *(b"\xc1" * n for n in range(1, 65)))
    await node.took(FPM, await lab.records.publish(batch))
    position = await lab.records.publish(world.raw_batch("prefill", START, b"\xc1"))
    await node.took(FPM, position)
    await lab.down()
    lab.clock.move(START + 5)
    await asyncio.sleep(0.3)
    await lab.up()
    await eventually(lambda: len(node.said) == 2)
    letters = await lab.letters()
    assert len(letters) == 65
    assert letters[-1].position == position


async def test_a_stop_while_the_bus_is_away_ends_in_peace_and_costs_nothing(lab: Lab) -> None:
    await lab.fleet()
    bus = await lab.bus()
    node = await (await lab.start(records=bus)).started()
    await node.took(PROPOSALS, await lab.ask(decode=3))
    await lab.down()
    lab.clock.move(START + 5)
    await asyncio.sleep(0.2)
    await node.stopped()
    await lab.up()
    again = await lab.node()
    assert [(d.epoch, d.decision_id) for d in again.decisions] == [(2, 0)]
    assert [(d.epoch, d.decision_id) for d in await lab.decisions()] == [(2, 0)]


async def test_a_stop_before_the_start_is_through_ends_in_peace(lab: Lab) -> None:
    bus = await lab.bus()
    await lab.down()
    node = await lab.start(records=bus)
    await asyncio.sleep(0.1)
    await node.stopped()
    assert node.said == []
    await lab.up()


async def test_a_stop_in_the_middle_of_a_tick_lets_it_finish(lab: Lab) -> None:
    await lab.fleet()
    bus = await lab.bus()
    node = await (await lab.start(records=bus)).started()
    await node.took(PROPOSALS, await lab.ask(decode=3))

    async def stop_then(record: Record) -> None:
        node.stop.set()
        await asyncio.sleep(0.05)

    bus.before = stop_then
    lab.clock.move(START + 5)
    await node.stop.wait()
    await node.stopped()
    assert [d.decision_id for d in await lab.decisions()] == [0]
    assert isinstance(node.said[-1][-1], TickReport)


async def test_what_the_bus_refuses_for_good_ends_the_start(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await lab.bus()

    async def refused(*_: object, **__: object) -> None:
        raise BusError("this user may not read")

    monkeypatch.setattr(bus, "read", refused)
    node = await lab.start(records=bus)
    error = await node.ends()
    assert isinstance(error, BusError)
    assert str(error) == "this user may not read"
