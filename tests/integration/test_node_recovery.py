"""A planner that starts: from its snapshot and the log, on the in-memory bus and on NATS, whatever is missing."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
import world
from nats_support import fresh_prefix, nats_server
from node_support import DGD, START, Lab, Running, lab_on

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.decision import Decision
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import ACKS, DECISIONS, FPM, PROPOSALS, STATE, TICKS, TRAFFIC


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


def iterations(first: int, last: int, at: float = START) -> FpmBatch:
    """FPMs `first` to `last` of one idle decode engine."""
    return world.batch("decode", at, *(world.fpm("11", n) for n in range(first, last + 1)))


async def crash_before(what: type[Record], node: Running) -> asyncio.Event:
    """Have the node die right before it publishes such a record; the event tells that it is there."""
    there = asyncio.Event()

    async def hang(record: Record) -> None:
        if isinstance(record, what):
            there.set()
            await asyncio.Event().wait()

    node.node.bus.before = hang  # type: ignore[attr-defined]  # a HookedBus
    return there


@pytest.mark.parametrize("end", [Running.stopped, Running.killed])
async def test_what_is_on_the_log_counts_once_whether_the_snapshot_has_it_or_the_tail(
    lab: Lab, end: Callable[[Running], object]
) -> None:
    node = await lab.node()
    await node.took(FPM, await lab.records.publish(iterations(1, 10)))
    await node.took(TRAFFIC, await lab.records.publish(world.window(START - 5, START, 50)))
    await node.tick()
    await node.took(FPM, await lab.records.publish(iterations(11, 15)))  # taken in, but in no snapshot
    await end(node)  # type: ignore[misc]
    await lab.records.publish(iterations(16, 20))
    await lab.records.publish(iterations(1, 20))  # what a source sends again is another message
    await lab.records.publish(world.window(START - 5, START, 50), message_id="again")
    lab.clock.move(START + 10)
    report = (await lab.node()).reports[0]
    assert report.counters["fpm_seen"] == 20
    assert report.counters["fpm_duplicate"] == 20
    assert report.counters["traffic_duplicate"] == 1
    assert report.notes == []


async def test_the_first_start_of_all_has_nothing_to_rebuild(lab: Lab) -> None:
    assert (await lab.node()).reports[0].notes == []


async def test_the_epoch_rises_with_every_start_and_ids_go_on(lab: Lab) -> None:
    for life in range(3):
        await lab.ask(decode=2 + life)
        lab.clock.move(START + 100 * life)
        await lab.fleet(decode=1 + life)
        node = await lab.node()
        assert node.reports[0].epoch == life + 1
        await node.took(ACKS, await lab.ack(node.decisions[-1]))
        await node.stopped() if life else await node.killed()
    decisions = await lab.decisions()
    assert [(d.epoch, d.decision_id) for d in decisions] == [(1, 0), (2, 1), (3, 2)]


async def test_a_lost_snapshot_is_rebuilt_from_the_log_and_the_next_report_says_so(lab: Lab) -> None:
    node = await lab.node()
    await node.took(FPM, await lab.records.publish(iterations(1, 10)))
    await node.took(PROPOSALS, await lab.ask(decode=3))
    await node.tick()
    await lab.ack(node.decisions[0])
    await node.stopped()
    await lab.lose(STATE)
    lab.clock.move(START + 10)
    again = await lab.node()
    report = again.reports[0]
    assert (report.epoch, report.counters["fpm_seen"], report.last_outcome) == (2, 10, "applied")
    assert report.notes[0] == "there is no snapshot, and the log knows epoch 1: rebuilt from the log"
    assert again.node.planner.ledger.next_id == 1


async def test_even_without_snapshot_and_decisions_no_former_epoch_is_used_again(lab: Lab) -> None:
    for _ in range(3):
        await (await lab.node()).stopped()
        lab.clock.move(lab.clock.at + 5)
    await lab.lose(STATE)
    assert (await lab.node()).reports[0].epoch == 4


def with_bytes(s: PlannerState, blob: bytes) -> PlannerState:
    return msgspec.structs.replace(s, state=blob, crc32=zlib.crc32(blob))


def with_state(s: PlannerState, **changes: Any) -> PlannerState:
    """The snapshot with other contents, in good form."""
    return with_bytes(s, zlib.compress(msgspec.json.encode(msgspec.json.decode(zlib.decompress(s.state)) | changes)))


CORRUPTIONS: dict[str, Callable[[PlannerState], bytes]] = {
    "nothing": lambda s: b"",
    "garbage": lambda s: b"\x00\xff not a snapshot",
    "cut_off": lambda s: encode(s)[:-20],
    "flipped_byte": lambda s: encode(msgspec.structs.replace(s, state=s.state[:-9] + b"\x00" + s.state[-8:])),
    "wrong_crc": lambda s: encode(msgspec.structs.replace(s, crc32=s.crc32 ^ 1)),
    "half": lambda s: encode(with_bytes(s, s.state[: len(s.state) // 2])),
    "not_compressed": lambda s: encode(with_bytes(s, zlib.decompress(s.state))),
    "half_inside": lambda s: encode(with_bytes(s, zlib.compress(zlib.decompress(s.state)[:-100]))),
    "other_version": lambda s: encode(with_state(s, version=999)),
    "later_schema": lambda s: encode(s).replace(b"headrace.state.v1", b"headrace.state.v9"),
    "another_record": lambda s: encode(world.inventory(START, decode=1)),
    "too_large": lambda s: encode(msgspec.structs.replace(s, state=b"", crc32=0, positions={})),
    "without_ledger": lambda s: encode(with_state(s, ledger=None)),
    "of_another_dgd": lambda s: encode(with_state(s, dgd="ml/other")),
    "under_another_key": lambda s: encode(msgspec.structs.replace(s, dgd="ml/other")),
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
async def test_a_corrupt_snapshot_is_rebuilt_from_the_log_and_the_next_report_says_so(
    lab: Lab, corrupt: Callable[[PlannerState], bytes]
) -> None:
    await lab.records.publish(iterations(1, 10))
    await lab.ask(decode=3)
    node = await lab.node()
    await lab.ack(node.decisions[0])
    await node.stopped()
    position = await lab.put(STATE, corrupt(await lab.state()))
    lab.clock.move(START + 5)
    again = await lab.node()
    report = again.reports[0]
    (note,) = report.notes
    assert note.startswith(f"the snapshot at position {position} is unusable (")
    assert note.endswith("rebuilt from the log")
    assert (report.epoch, report.counters["fpm_seen"], report.last_outcome) == (2, 10, "applied")
    assert again.node.planner.ledger.next_id == 1
    assert (await again.tick()).notes == []
    assert (await lab.state()).epoch == 2


async def test_a_decision_that_only_the_snapshot_holds_is_published_byte_for_byte_at_the_next_start(lab: Lab) -> None:
    node = await lab.node()
    await node.took(PROPOSALS, await lab.ask(decode=3))
    there = await crash_before(Decision, node)
    lab.clock.move(START + 5)
    await asyncio.wait_for(there.wait(), 20)
    expected = node.node.planner.ledger.outstanding
    assert expected is not None
    await node.killed()
    assert await lab.decisions() == []
    lab.clock.move(START + 10)
    again = await lab.node()
    message = await lab.records.bus.last(DECISIONS, DGD)
    assert message is not None
    assert message.data == encode(expected)
    assert again.reports[0].outstanding == 0
    assert again.reports[0].epoch == 2
    await again.took(ACKS, await lab.ack(expected))
    await lab.fleet(decode=3)
    await again.took(PROPOSALS, await lab.ask(decode=4))
    await again.tick()
    assert [(d.epoch, d.decision_id) for d in await lab.decisions()] == [(1, 0), (2, 1)]


async def test_a_crash_right_behind_the_decision_publishes_it_no_second_time(lab: Lab) -> None:
    node = await lab.node()
    await node.took(PROPOSALS, await lab.ask(decode=3))
    reported = asyncio.Event()

    async def hang(records: object) -> None:
        reported.set()
        await asyncio.Event().wait()

    node.node.bus.publish_many = hang  # type: ignore[method-assign]
    lab.clock.move(START + 5)
    await asyncio.wait_for(reported.wait(), 20)
    await node.killed()
    lab.clock.move(START + 300)  # beyond the window in which a bus knows a repeated message
    await lab.fleet()
    await lab.node()
    assert [d.decision_id for d in await lab.decisions()] == [0]
    slots = [report.tick for report in await lab.reports()]
    assert slots == sorted(set(slots))


async def forget_the_decision(lab: Lab) -> Decision:
    """A log with a decision, under the snapshot from before it."""
    node = await lab.node()
    before = await lab.state()
    await node.took(PROPOSALS, await lab.ask(decode=3))
    await node.tick()
    await node.stopped()
    await lab.records.publish(before, message_id="the old one again")
    lab.clock.move(START + 10)
    return node.decisions[0]


async def test_a_decision_that_only_the_log_holds_is_adopted(lab: Lab) -> None:
    decision = await forget_the_decision(lab)
    node = await lab.node()
    assert node.reports[0].outstanding == decision.decision_id
    await node.took(ACKS, await lab.ack(decision))
    await lab.fleet(decode=3)
    await node.took(PROPOSALS, await lab.ask(decode=4))
    assert (await node.tick()).last_outcome == "outstanding"
    assert [(d.epoch, d.decision_id) for d in await lab.decisions()] == [(1, 0), (2, 1)]


async def test_acks_on_the_log_settle_an_adopted_decision(lab: Lab) -> None:
    await lab.ack(await forget_the_decision(lab), "rejected")
    report = (await lab.node()).reports[0]
    assert (report.outstanding, report.last_outcome) == (None, "rejected")


async def test_an_ack_that_the_snapshot_had_passed_settles_an_adopted_decision_too(lab: Lab) -> None:
    node = await lab.node()
    await node.took(PROPOSALS, await lab.ask(decode=3))
    await node.tick()
    await node.took(ACKS, await lab.ack(node.decisions[0], "rejected"))
    await node.tick()
    await node.stopped()
    state = await lab.state()
    ledger = msgspec.json.decode(zlib.decompress(state.state))["ledger"]
    nothing = {"newest": None, "next_id": 0, "outcome": None, "settled_at": None}
    await lab.records.publish(with_state(state, ledger=ledger | nothing), "another")
    lab.clock.move(START + 15)
    assert (await lab.node()).reports[0].last_outcome == "rejected"


STRANGE_DECISIONS: dict[str, Callable[[Decision], bytes]] = {
    "garbage": lambda d: b"\x00 junk",
    "of_another_dgd": lambda d: encode(msgspec.structs.replace(d, dgd="ml/other", decision_id=7)),
    "beyond_all_ids": lambda d: encode(msgspec.structs.replace(d, decision_id=2**63 - 1)),
    "beyond_all_epochs": lambda d: encode(msgspec.structs.replace(d, epoch=2**62)),
}


@pytest.mark.parametrize("snapshot", ["kept", "lost"])
@pytest.mark.parametrize("strange", STRANGE_DECISIONS.values(), ids=STRANGE_DECISIONS)
async def test_what_no_planner_decided_hides_no_decision_before_it(
    lab: Lab, strange: Callable[[Decision], bytes], snapshot: str
) -> None:
    await lab.ask(decode=3)
    node = await lab.node()
    await lab.ack(node.decisions[0])
    await node.stopped()
    position = await lab.put(DECISIONS, strange(node.decisions[0]))
    if snapshot == "lost":
        await lab.lose(STATE)
    lab.clock.move(START + 300)
    await lab.fleet(decode=3)
    await lab.ask(decode=4)
    again = await lab.node()
    assert f"decisions at position {position} is no decision that a planner could have made" in again.reports[0].notes
    assert [(d.epoch, d.decision_id) for d in again.decisions] == [(2, 1)]


async def test_missed_ticks_run_once(lab: Lab) -> None:
    node = await lab.node()
    first = node.reports[0]
    late = await node.tick(after_s=103.0)
    assert (late.tick - first.tick, late.at - late.due_at) == (20, 3.0)
    assert (await node.tick(after_s=2.0)).tick == late.tick + 1
    assert len(await lab.log(TICKS)) == 3


async def test_a_start_in_the_slot_of_the_last_tick_waits_for_the_next(lab: Lab) -> None:
    node = await lab.node()
    await node.stopped()
    again = await lab.start()
    await asyncio.sleep(0.3)
    assert again.said == []
    assert (await again.tick()).tick == node.reports[0].tick + 1


async def test_a_clock_set_back_is_not_waited_for(lab: Lab) -> None:
    lab.clock.move(START + 10_000)
    node = await lab.node()
    lab.clock.move(START)
    await asyncio.sleep(0.1)
    assert len(node.said) == 1
    assert (await node.tick()).at == START + 5
    assert (await node.tick()).at == START + 10


async def test_a_clock_set_back_between_two_lives_is_not_waited_for(lab: Lab) -> None:
    lab.clock.move(START + 10_000)
    await (await lab.node()).stopped()
    lab.clock.move(START)
    again = await lab.start()
    for _ in range(30):
        await asyncio.sleep(0.05)
        lab.clock.move(lab.clock.at + 5)
    assert again.reports
    assert all(START < report.at <= START + 150 for report in again.reports)
