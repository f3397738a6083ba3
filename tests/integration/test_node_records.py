"""What a planner reads that it cannot use: it becomes a dead letter, and everything beside it counts."""

from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import pytest
import world
from bus_support import eventually
from nats_support import fresh_prefix, nats_server
from node_support import DGD, START, Lab, lab_on

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.deadletter import KEPT_HEADER_BYTES
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.fpm import encode_fpm
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.streams import FPM, INVENTORY, STREAMS, TRAFFIC, Stream
from headrace.streams.runtime.node import INPUTS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path_factory.mktemp("nats"), store_bytes=1024 * 1024**3) as server:
        yield server


@pytest.fixture(params=["memory", "nats"])
async def lab(request: pytest.FixtureRequest, server: EmbeddedNats) -> AsyncIterator[Lab]:
    async with lab_on(server if request.param == "nats" else None, fresh_prefix()) as lab:
        yield lab


def good(stream: Stream) -> bytes:
    return encode(msgspec.structs.replace(EXAMPLES[stream.name], dgd=DGD))


def other_version(stream: Stream) -> bytes:
    return good(stream).replace(b".v1", b".v7", 1)


def another_record(stream: Stream) -> bytes:
    """A record of another stream with the same codec; FPM is the only one in msgpack."""
    other = TRAFFIC if stream is not TRAFFIC else INVENTORY
    if stream is FPM:
        return msgspec.msgpack.encode({"schema": "headrace.traffic.v1", "dgd": DGD})
    return good(other)


def of_another_dgd(stream: Stream) -> bytes:
    return encode(msgspec.structs.replace(EXAMPLES[stream.name], dgd="ml/other"))


BAD: dict[str, tuple[Callable[[Stream], bytes], str]] = {
    "undecodable": (lambda stream: b"\xc1 junk", "undecodable"),
    "empty": (lambda stream: b"", "undecodable"),
    "unsupported_version": (other_version, "unsupported_version"),
    "wrong_schema": (another_record, "wrong_schema"),
    "of_another_dgd": (of_another_dgd, "invalid"),
}


@pytest.mark.parametrize("stream", INPUTS, ids=lambda s: s.name)
async def test_what_cannot_be_used_becomes_a_dead_letter_with_its_position_and_reason(lab: Lab, stream: Stream) -> None:
    await lab.fleet()
    node = await lab.node()
    expected = []
    for make, reason in BAD.values():
        data = make(stream)
        expected.append((stream.name, await lab.put(stream, data), reason, len(data), "planner", None))
    await node.took(stream, expected[-1][1])
    await node.tick()
    letters = await lab.letters()
    assert [(le.stream, le.position, le.reason, le.size, le.reader, le.item) for le in letters] == expected
    await node.stopped()
    lab.clock.move(START + 600)  # nothing is known as repeated any more
    await lab.fleet()
    await lab.node()
    assert len(await lab.letters()) == len(expected)


async def test_bad_items_of_a_batch_are_named_and_the_others_count(lab: Lab) -> None:
    node = await lab.node()
    fine = [encode_fpm(world.fpm("11", n)) for n in range(1, 4)]
    empty_id = encode_fpm(world.fpm("11", 4)).replace(b"\xa9worker_id\xa211", b"\xa9worker_id\xa0")
    batch = world.raw_batch("decode", START, fine[0], b"\xc1", fine[1], empty_id, fine[2])
    position = await lab.records.publish(batch)
    await node.took(FPM, position)
    report = await node.tick()
    letters = await lab.letters()
    assert [(le.position, le.item, le.reason, le.data) for le in letters] == [
        (position, 1, "undecodable", b"\xc1"),
        (position, 3, "empty_worker_id", empty_id),
    ]
    assert (report.counters["fpm_seen"], report.counters["fpm_bad"]) == (3, 2)


async def test_a_flood_of_bad_items_is_kept_letter_by_letter_before_the_next_tick(lab: Lab) -> None:
    node = await lab.node()
    batches = [
        FpmBatch(dgd=DGD, role="decode", source=f"s{n}", received_at=START, items=[*_bad(n, 40), *_fine(n)])
        for n in range(20)
    ]
    await lab.records.publish_many(batches)
    await eventually(lambda: node.node.planner.fpm.counters.bad == 800)
    assert len(node.node._letters) < 64 + 40
    report = await node.tick()
    letters = await lab.letters()
    assert len({(le.position, le.item) for le in letters}) == len(letters) == 800
    assert report.counters["fpm_seen"] == 20


def _bad(n: int, count: int) -> list[world.FpmItem]:
    return [world.FpmItem(START, n, i, b"\xc1" * (i + 1)) for i in range(count)]


def _fine(n: int) -> list[world.FpmItem]:
    return [world.FpmItem(START, n, 1000, encode_fpm(world.fpm(str(100 + n), 1)))]


async def test_a_record_that_breaks_the_planner_is_put_aside_and_the_next_one_counts(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await lab.node()
    handle = type(node.node.planner).handle

    def break_on_traffic(self: object, record: Record, now: float) -> list[Record]:
        if record == EXAMPLES["traffic"]:
            raise ZeroDivisionError("no such luck")
        return handle(self, record, now)  # type: ignore[arg-type]

    monkeypatch.setattr(type(node.node.planner), "handle", break_on_traffic)
    monkeypatch.setitem(EXAMPLES, "traffic", msgspec.structs.replace(EXAMPLES["traffic"], dgd=DGD))
    position = await lab.records.publish(EXAMPLES["traffic"])
    await node.took(TRAFFIC, await lab.records.publish(world.window(START - 5, START, 20)))
    report = await node.tick()
    (letter,) = await lab.letters()
    assert (letter.position, letter.reason, letter.message) == (position, "invalid", "ZeroDivisionError: no such luck")
    assert report.load["requests_per_s"] == 4.0


async def test_a_letter_keeps_few_of_many_headers(lab: Lab) -> None:
    node = await lab.node()
    headers = {f"x-{n}": "y" * 1000 for n in range(40)}
    await node.took(TRAFFIC, await lab.put(TRAFFIC, b"junk", headers))
    await node.tick()
    (letter,) = await lab.letters()
    assert letter.headers == {f"x-{n}": "y" * 1000 for n in range(KEPT_HEADER_BYTES // 1004)}


async def test_records_of_other_dgds_are_none_of_its_business(lab: Lab) -> None:
    node = await lab.node()
    for stream in INPUTS:
        other = msgspec.structs.replace(EXAMPLES[stream.name], dgd="ml/other")
        await lab.records.bus.publish(Outgoing(stream.name, "ml/other", encode(other)))
        await lab.records.bus.publish(Outgoing(stream.name, "ml/other", b"junk"))
    assert set(STREAMS) > {stream.name for stream in INPUTS}
    report = await node.tick()
    assert report.counters["fpm_seen"] == 0
    assert await lab.letters() == []


async def test_a_configuration_that_cannot_be_is_noted_and_the_one_in_force_stays(lab: Lab) -> None:
    node = await lab.node()
    revision = msgspec.structs.replace(EXAMPLES["config"], dgd=DGD, revision=7, config={"ttft": -3})
    await node.took(STREAMS["config"], await lab.records.publish(revision))
    report = await node.tick()
    assert any(note.startswith("configuration revision 7 refused, revision 0 stays") for note in report.notes)
