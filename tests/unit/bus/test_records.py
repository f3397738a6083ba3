"""Records on a bus: what is written, what is read, and what becomes of bytes that are no record."""

import logging
from dataclasses import replace

import msgspec
import pytest

from headrace.connectors.bus.base import Message, Outgoing
from headrace.connectors.bus.memory import MemoryBroker, MemoryBus
from headrace.connectors.bus.records import REQUEUED, RecordBus
from headrace.schemas.ack import DecisionAck
from headrace.schemas.cloudevents import headers_for, record_id
from headrace.schemas.codec import encode
from headrace.schemas.deadletter import KEPT_BYTES, UNKNOWN_DGD, DeadLetter
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.errors import BusError, Fenced, RecordError
from headrace.schemas.streams import ACKS, DEADLETTERS, DECISIONS, FPM, STREAMS

A, B = "ml/llama", "ml/qwen"
NOW = 1_800_000_000.0


def decision(decision_id: int = 0, dgd: str = A) -> Decision:
    return Decision(
        dgd=dgd,
        epoch=1,
        decision_id=decision_id,
        issued_at=NOW,
        expires_at=NOW + 60,
        targets={"decode": 2},
        previous={"decode": 1},
        reasons={"decode": "scale_up"},
        causes=Causes(tick=1),
    )


@pytest.fixture
async def bus() -> MemoryBus:
    opened = MemoryBus(MemoryBroker(lambda: NOW))
    await opened.open()
    await opened.ensure(STREAMS.values())
    return opened


@pytest.fixture
async def records(bus: MemoryBus) -> RecordBus:
    return RecordBus(bus, "planner", lambda: NOW)


async def letters(records: RecordBus) -> list[DeadLetter]:
    reader = await records.read(DEADLETTERS, after=0)
    found = [record for record, _ in await reader.next(timeout=0)]
    return [letter for letter in found if isinstance(letter, DeadLetter)]


async def test_a_record_comes_back_with_the_message_that_carried_it(records: RecordBus) -> None:
    position = await records.publish(decision())
    [(record, message)] = await (await records.read(DECISIONS, after=0)).next()
    assert record == decision()
    assert (message.key, message.position, message.stream) == (A, position, "decisions")


async def test_headers_are_those_of_cloudevents_in_the_name_of_the_process(records: RecordBus, bus: MemoryBus) -> None:
    await records.publish(decision())
    last = await bus.last(DECISIONS, A)
    assert last is not None
    assert dict(last.headers) == headers_for(decision(), source="/headrace/planner")
    assert last.headers["ce-id"] == record_id(decision())


async def test_a_record_that_is_published_twice_counts_once(records: RecordBus) -> None:
    assert await records.publish(decision()) == await records.publish(decision())
    await records.publish_many([decision(), decision(1), decision(1)])
    assert len(await (await records.read(DECISIONS, after=0)).next()) == 2


async def test_a_message_id_of_ones_own_is_the_identity(records: RecordBus, bus: MemoryBus) -> None:
    first = await records.publish(decision(0), message_id="mine")
    assert await records.publish(decision(1), message_id="mine") == first
    last = await bus.last(DECISIONS, A)
    assert last is not None
    assert last.headers["ce-id"] == "mine"


async def test_a_record_that_expects_another_last_position_is_fenced(records: RecordBus) -> None:
    await records.publish(decision(0), expect_last=0)
    with pytest.raises(Fenced):
        await records.publish(decision(1), expect_last=0)


async def test_one_dgd_can_be_read_alone(records: RecordBus) -> None:
    await records.publish_many([decision(0, A), decision(0, B), decision(1, A)])
    reader = await records.read(DECISIONS, key=A, after=0)
    assert [record.dgd for record, _ in await reader.next()] == [A, A]


async def test_last_is_decoded(records: RecordBus) -> None:
    assert await records.last(DECISIONS, A) is None
    await records.publish_many([decision(0), decision(1)])
    found = await records.last(DECISIONS, A)
    assert found is not None
    assert found[0] == decision(1)


async def test_bytes_that_cannot_be_decoded_become_a_dead_letter_and_the_reader_goes_on(
    records: RecordBus, bus: MemoryBus
) -> None:
    await records.publish(decision(0))
    bad = await bus.publish(Outgoing("decisions", A, b"{nonsense", {"x": "y"}))
    await records.publish(decision(1))
    reader = await records.read(DECISIONS, after=0)
    assert [record for record, _ in await reader.next()] == [decision(0), decision(1)]
    [letter] = await letters(records)
    assert letter.dgd == A
    assert (letter.reason, letter.reader, letter.stream, letter.position) == (
        "undecodable",
        "planner",
        "decisions",
        bad,
    )
    assert (letter.data, letter.size, letter.headers, letter.at) == (b"{nonsense", 9, {"x": "y"}, NOW)
    assert "decisions record of 9 bytes" in letter.message
    assert records.dead_letters == {("decisions", "undecodable"): 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "undecodable"),
        (b"\xff\xfe", "undecodable"),
        (b"[]", "undecodable"),
        (b"[" * 100_000, "undecodable"),
        (encode(decision()).replace(b"headrace.decision.v1", b"headrace.decision.v2"), "unsupported_version"),
        (encode(decision()).replace(b"headrace.decision.v1", b"headrace.ack.v1"), "wrong_schema"),
        (encode(decision()).replace(b'"decode":2', b'"decode":-2'), "undecodable"),
    ],
)
async def test_the_reason_says_what_was_wrong(records: RecordBus, bus: MemoryBus, data: bytes, reason: str) -> None:
    await bus.publish(Outgoing("decisions", A, data))
    assert await (await records.read(DECISIONS, after=0)).next() == []
    assert [letter.reason for letter in await letters(records)] == [reason]


async def test_a_record_of_another_dgd_than_its_key_is_a_dead_letter(records: RecordBus, bus: MemoryBus) -> None:
    await bus.publish(Outgoing("decisions", B, encode(decision(dgd=A))))
    assert await (await records.read(DECISIONS, after=0)).next() == []
    [letter] = await letters(records)
    assert (letter.dgd, letter.reason) == (B, "invalid")
    assert f"record of {A} under the key {B}" in letter.message


async def test_a_key_that_no_record_may_carry_becomes_an_unknown_dgd(records: RecordBus, bus: MemoryBus) -> None:
    await bus.publish(Outgoing("decisions", "ml/a b", b"x"))
    await (await records.read(DECISIONS, after=0)).next()
    assert [letter.dgd for letter in await letters(records)] == [UNKNOWN_DGD]


async def test_bad_bytes_are_cut_and_their_size_is_kept(records: RecordBus, bus: MemoryBus) -> None:
    await bus.publish(Outgoing("decisions", A, b"x" * (KEPT_BYTES + 1)))
    await (await records.read(DECISIONS, after=0)).next()
    [letter] = await letters(records)
    assert (len(letter.data), letter.size) == (KEPT_BYTES, KEPT_BYTES + 1)


async def test_the_same_bad_message_read_twice_is_one_dead_letter(records: RecordBus, bus: MemoryBus) -> None:
    await bus.publish(Outgoing("decisions", A, b"x"))
    for _ in range(2):
        await (await records.read(DECISIONS, after=0)).next()
    assert len(await letters(records)) == 1


async def test_items_of_a_batch_are_told_apart(records: RecordBus) -> None:
    message = Message("fpm", A, 7, b"batch", {}, NOW)
    for item in range(3):
        await records.reject(message, "empty_worker_id", "worker_id is empty", item)
    assert [letter.item for letter in await letters(records)] == [0, 1, 2]
    assert records.dead_letters == {("fpm", "empty_worker_id"): 3}


async def test_a_reader_goes_on_when_not_even_the_dead_letter_can_be_stored(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(MemoryBus):
        async def publish(self, out: Outgoing, *, expect_last: int | None = None) -> int:
            raise BusError("the disk is full")

    await bus.publish(Outgoing("decisions", A, b"x"))
    await bus.publish(Outgoing("decisions", A, encode(decision())))
    full = Full(bus.broker)
    await full.open()
    records = RecordBus(full, "planner", lambda: NOW)
    with caplog.at_level(logging.ERROR):
        assert len(await (await records.read(DECISIONS, after=0)).next()) == 1
    assert records.dead_letters_lost == 1
    assert "dead letter lost: undecodable at 1 of decisions" in caplog.text
    assert "the disk is full" in caplog.text


async def test_a_bad_dead_letter_is_not_put_to_the_dead_letters(records: RecordBus, bus: MemoryBus) -> None:
    await bus.publish(Outgoing("deadletters", A, b"x"))
    assert await (await records.read(DEADLETTERS, after=0)).next() == []
    assert (await bus.info(DEADLETTERS)).messages == 1
    assert records.dead_letters == {("deadletters", "undecodable"): 1}


async def test_iterating_ends_when_the_reader_is_closed(records: RecordBus) -> None:
    await records.publish_many([decision(0), decision(1)])
    reader = await records.read(DECISIONS, after=0)
    seen = []
    async for batch in reader:
        seen += batch
        await reader.close()
    assert len(seen) == 2


async def dead_letter_of(records: RecordBus, stream: str, data: bytes) -> DeadLetter:
    await records.bus.publish(Outgoing(stream, A, data, {"x": "y"}))
    await (await records.read(STREAMS[stream], after=0)).next()
    return (await letters(records))[-1]


async def test_a_dead_letter_that_can_be_read_by_now_is_put_back_once(records: RecordBus, bus: MemoryBus) -> None:
    letter = msgspec.structs.replace(await dead_letter_of(records, "decisions", b"x"), data=encode(decision()), size=0)
    position = await records.requeue(letter)
    assert await records.requeue(letter) == position
    last = await records.last(DECISIONS, A)
    assert last is not None
    assert last[0] == decision()
    assert dict(last[1].headers) == {"x": "y", REQUEUED: "1"}


async def test_a_dead_letter_that_still_cannot_be_read_is_not_put_back(records: RecordBus) -> None:
    letter = await dead_letter_of(records, "decisions", b"x")
    with pytest.raises(RecordError, match="decisions record of 1 bytes"):
        await records.requeue(letter)
    assert (await records.bus.info(DECISIONS)).messages == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stream": "namespace.a.component.b"}, "no stream of ours"),
        ({"position": None}, "no stream of ours"),
        ({"item": 3}, "item 3 of a batch"),
        ({"size": 10**6}, "only 1 of its 1000000 bytes were kept"),
    ],
)
async def test_what_cannot_be_put_back_is_refused_with_the_reason(
    records: RecordBus, changes: dict[str, object], says: str
) -> None:
    letter = await dead_letter_of(records, "decisions", b"x")
    with pytest.raises(RecordError, match=says):
        await records.requeue(msgspec.structs.replace(letter, **changes))


async def test_every_stream_carries_its_own_record(records: RecordBus) -> None:
    ack = DecisionAck(dgd=A, epoch=1, decision_id=0, status="applied", executor="virtual", at=NOW)
    await records.publish(ack)
    assert [record for record, _ in await (await records.read(ACKS, after=0)).next()] == [ack]
    assert await (await records.read(FPM, after=0)).next(timeout=0) == []
    assert replace(ACKS) == ACKS
