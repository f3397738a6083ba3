"""The writer of a DGD: what it insists on, what it passes over, and what does not fit."""

import asyncio
import logging
import zlib
from collections.abc import Sequence

import msgspec
import pytest
from bus_support import kept, memory_records
from decision_support import DGD, decision

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.memory import MemoryBroker, MemoryBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import BusError, Fenced
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import DEADLETTERS, DECISIONS, STATE, TRAFFIC
from headrace.streams.runtime import writer as module
from headrace.streams.runtime.writer import Writer

STATE_1 = PlannerState(dgd=DGD, epoch=1, taken_at=5.0, positions={"fpm": 3}, crc32=zlib.crc32(b"x"), state=b"x")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)


@pytest.fixture
async def records() -> RecordBus:
    return await memory_records(lambda: 1000.0, "planner")


def broker_of(records: RecordBus) -> MemoryBroker:
    assert isinstance(records.bus, MemoryBus)
    return records.bus.broker


async def test_two_snapshots_of_one_moment_are_two_messages(records: RecordBus) -> None:
    writer = Writer(records, DGD)
    await writer.save(STATE_1)
    await writer.save(msgspec.structs.replace(STATE_1, positions={"fpm": 4}))
    assert [s.positions for s in await kept(records, STATE) if isinstance(s, PlannerState)] == [{"fpm": 4}]


async def test_the_same_snapshot_of_two_owners_is_not_one(records: RecordBus) -> None:
    await Writer(records, DGD).save(STATE_1)
    with pytest.raises(Fenced):
        await Writer(records, DGD).save(STATE_1)


async def test_each_writes_behind_what_it_knows(records: RecordBus) -> None:
    first = Writer(records, DGD)
    await first.save(STATE_1)
    second = Writer(records, DGD, state_position=first.state_position)
    await second.save(STATE_1)
    with pytest.raises(Fenced):
        await first.save(STATE_1)
    await second.save(STATE_1)


async def test_a_decision_is_stored_once_and_no_other_takes_its_place(records: RecordBus) -> None:
    writer = Writer(records, DGD)
    await writer.decide(decision(0))
    await Writer(records, DGD).decide(decision(0))  # the same out of a snapshot
    with pytest.raises(Fenced):
        await Writer(records, DGD).decide(decision(1))
    assert await kept(records, DECISIONS) == [decision(0)]


async def test_a_stranger_s_bytes_go_to_the_dead_letters_once(records: RecordBus) -> None:
    writer = Writer(records, DGD)
    await writer.decide(decision(0))
    strange = encode(msgspec.structs.replace(decision(1), dgd="ml/other"))
    for data in (b"junk", strange):
        await records.bus.publish(Outgoing(DECISIONS.name, DGD, data))
    await writer.decide(decision(1))
    await writer.decide(decision(2))
    (letter,) = await kept(records, DEADLETTERS)  # the newest alone is looked at; readers find the other
    assert isinstance(letter, DeadLetter)
    assert (letter.stream, letter.position, letter.reason) == ("decisions", 3, "invalid")


async def test_it_waits_for_a_bus_that_is_away(records: RecordBus) -> None:
    broker_of(records).available = False
    saying = asyncio.create_task(Writer(records, DGD).say([EXAMPLES["traffic"]]))
    await asyncio.sleep(0.05)
    assert not saying.done()
    broker_of(records).available = True
    await saying
    assert await kept(records, TRAFFIC) == [EXAMPLES["traffic"]]


async def test_a_lost_answer_is_no_second_owner(records: RecordBus, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, calls = records.publish, 0

    async def lose_the_first_answer(record: Record, message_id: str | None, expect_last: int | None) -> int:
        nonlocal calls
        calls += 1
        position = await publish(record, message_id, expect_last)
        if calls == 1:
            raise BusError("no acknowledgement")
        return position

    monkeypatch.setattr(records, "publish", lose_the_first_answer)
    writer = Writer(records, DGD)
    await writer.save(STATE_1)
    assert (writer.state_position, calls) == (1, 2)


async def test_a_snapshot_that_does_not_fit_still_fences(records: RecordBus, caplog: pytest.LogCaptureFixture) -> None:
    broker_of(records).max_message_bytes = 2000
    writer, former = Writer(records, DGD), Writer(records, DGD)
    await writer.save(msgspec.structs.replace(STATE_1, state=b"x" * 4000))
    (stored,) = await kept(records, STATE)
    assert isinstance(stored, PlannerState)
    assert (stored.state, stored.positions, stored.epoch) == (b"", {}, 1)
    assert "no snapshot" in caplog.text
    with pytest.raises(Fenced):
        await former.save(STATE_1)


async def test_of_many_records_only_the_one_that_does_not_fit_is_lost(
    records: RecordBus, caplog: pytest.LogCaptureFixture
) -> None:
    broker_of(records).max_message_bytes = 2000
    windows: Sequence[Record] = [
        msgspec.structs.replace(EXAMPLES["traffic"], window_id=name, unknown={"why": why})  # type: ignore[call-arg]
        for name, why in (("a", ""), ("b", "x" * 4000), ("c", ""))
    ]
    with caplog.at_level(logging.ERROR):
        await Writer(records, DGD).say(windows)
    assert await kept(records, TRAFFIC) == [windows[0], windows[2]]
    assert "lost: " in caplog.text


async def test_nothing_to_say_needs_no_bus(records: RecordBus) -> None:
    broker_of(records).available = False
    await Writer(records, DGD).say([])
