"""The worst that can be written to Headrace's own streams: the planner lives, says what is bad, and counts the rest."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import world
from descendants import needs_proc
from hostile import DGD, MiB, Victim, victim
from nats import errors
from nats_support import nats_server

from headrace.connectors.bus.base import Outgoing, TooLarge
from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.base import Record
from headrace.schemas.codec import encode, plain
from headrace.schemas.deadletter import KEPT_BYTES
from headrace.schemas.decision import Decision
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.streams import (
    ACKS,
    CONFIG,
    DEADLETTERS,
    DECISIONS,
    FPM,
    INVENTORY,
    PROPOSALS,
    STATE,
    STREAMS,
    TICKS,
    TRAFFIC,
    Stream,
)
from headrace.streams.live import core_client


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("hostile")
    with victim(folder, server_config=f"max_payload: {16 * MiB}") as planner:
        yield planner


# A number of each stream's record, which is no number then.
NUMBERS = {
    "fpm": "received_at",
    "traffic": "end",
    "inventory": "observed_at",
    "config": "revision",
    "predictions": "made_at",
    "fits": "newest",
    "proposals": "issued_at",
    "acks": "at",
}
NO_NUMBERS: dict[str, Any] = {
    "negative": -1,
    "text": "soon",
    "null": None,
    "a_list": [],
    "true": True,
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus_infinity": float("-inf"),
}


def bad(stream: Stream) -> dict[str, bytes]:
    """Bytes that no reader can use; JSON knows no NaN, but there are those who write it."""
    good = encode(example(stream))
    said = plain(example(stream)) if stream.codec == "json" else msgspec.msgpack.decode(good)
    write = (lambda value: json.dumps(value).encode()) if stream.codec == "json" else msgspec.msgpack.encode
    largest = {"too_large": 2**64 if stream.codec == "json" else 2**64 - 1}
    odd = {name: write(said | {NUMBERS[stream.name]: value}) for name, value in (NO_NUMBERS | largest).items()}
    odd["an_overflow"] = odd["infinity"].replace(b"Infinity", b"1e999") if stream.codec == "json" else b"\xcf"
    missing = {f"without_{key}": write({k: v for k, v in said.items() if k != key}) for key in ("schema", "dgd")}
    return odd | missing | {
        "nothing": b"",
        "zeros": b"\x00" * 1000,
        "all_bytes": bytes(range(256)),
        "html": b"<html><body>502 Bad Gateway</body></html>",
        "a_number": b"7",
        "null_alone": b"null" if stream.codec == "json" else b"\xc0",
        "cut_off": good[:-7],
        "one_byte_more": good + b"}",
        "twice": good + good,
        "the_tag_alone": write({"schema": said["schema"]}),
        "deeply_nested": b"[" * 100_000 if stream.codec == "json" else b"\x91" * 100_000,
        "other_version": write(said | {"schema": said["schema"].replace(".v1", ".v2")}),
        "other_record": write(said | {"schema": "headrace.rumour.v1"}),
        "of_another_dgd": write(said | {"dgd": "ml/other"}),
        "of_no_dgd": write(said | {"dgd": "llama"}),
        "ten_mib": b"\xff" * (10 * MiB),
    }  # fmt: skip


def example(stream: Stream) -> Record:
    return msgspec.structs.replace(EXAMPLES[stream.name], dgd=DGD)


def window(name: str, start: float, end: float, requests: int) -> Record:
    """A window under a name of its own."""
    return msgspec.structs.replace(world.window(start, end, requests), window_id=name)


@pytest.mark.parametrize("name", NUMBERS)
async def test_bad_bytes_on_an_input_become_dead_letters_with_reason_and_origin(planner: Victim, name: str) -> None:
    stream = STREAMS[name]
    async with planner.bus():
        before = await planner.end_of(DEADLETTERS)
        positions = {what: await planner.put(stream, data) for what, data in bad(stream).items()}
        await planner.took(stream, max(positions.values()))
        letters = {letter.position: letter for letter in await planner.letters(before)}
        assert set(letters) == set(positions.values())
        reasons = {what: letters[position].reason for what, position in positions.items()}
        assert reasons.pop("other_version") == "unsupported_version"
        assert reasons.pop("other_record") == "wrong_schema"
        assert reasons.pop("of_another_dgd") == "invalid"
        assert set(reasons.values()) == {"undecodable"}
        assert {letter.stream for letter in letters.values()} == {name}
        assert all(letter.message for letter in letters.values())
        large = letters[positions["ten_mib"]]
        assert (large.size, len(large.data)) == (10 * MiB, KEPT_BYTES)


async def test_iterations_between_bad_ones_are_all_counted(planner: Victim) -> None:
    async with planner.bus():
        earlier = await planner.report()
        at, before = earlier.at, earlier.counters
        letters_before = await planner.end_of(DEADLETTERS)
        highest = 2**64 - 1
        many = [world.fpm("101", n) for n in range(1, 51)]
        batches = [
            world.batch("decode", at, *many[:20]),
            world.raw_batch("decode", at, b"", b"\xc1", msgspec.msgpack.encode({"worker_id": "1", "wall_time": -1.0})),
            world.batch("decode", at, *many[20:]),
            world.batch("decode", at, *many[:20]),  # again
            world.batch("decode", at, many[30], many[29]),  # out of order
            world.batch("decode", at + 30 * 365 * 86_400.0, world.fpm("102", 1)),  # from the future
            world.batch("decode", 1.0, world.fpm("103", 1)),  # from 1970
            world.batch("decode", at, world.fpm(str(highest), highest, rank=highest), publisher=0),
            world.batch("encoder", at, world.fpm("104", 1)),  # of a role that nobody plans
            world.raw_batch("decode", at, world.encode_fpm(world.fpm("", 7))),
        ]
        for batch in batches:
            await planner.records.publish(batch, message_id=f"hostile {id(batch)}")
        report = await planner.took(FPM, await planner.end_of(FPM))
        gained = {name: report.counters[name] - before[name] for name in report.counters}
        assert gained["fpm_seen"] == 50 + 2 + 1
        assert gained["fpm_duplicate"] == 22
        assert gained["fpm_bad"] == 4
        assert (gained["fpm_clock_skew"], gained["fpm_late"]) == (1, 1)
        assert "encoder" in report.unknown["roles"]
        letters = await planner.letters(letters_before)
        assert [(letter.item, letter.reason) for letter in letters] == [
            (0, "undecodable"),
            (1, "undecodable"),
            (2, "undecodable"),
            (0, "empty_worker_id"),
        ]


async def test_after_absurd_clocks_and_counts_the_next_true_word_counts(planner: Victim) -> None:
    """Records that are well-formed and cannot be true, each followed by one that is."""
    years = 30 * 365 * 86_400.0
    async with planner.bus():
        now = (await planner.report()).at
        strange: list[Record] = [
            window("future", now + years, now + years + 5, 10**12),
            window("past", 5.0, 10.0, 2**40),
            window("short", now - 5, now - 5, 3),
            world.inventory(now + years, prefill=2**40, decode=2**40),
            world.inventory(1.0, prefill=0, decode=0),
            world.proposal("SET", at=now + years, until=now + 2 * years, proposal_id="later", decode=100_000),
            world.proposal("SET", at=1.0, until=2.0, proposal_id="before", decode=100_000),
            world.proposal("AT_MOST", at=now, until=now + 1, proposal_id="\N{PILE OF POO}" * 60, encoder=0),
            world.prediction(1e15, now + years, source="prophet of doom"),
            world.prediction(1e15, now - years, expires_at=now - years + 1),
            msgspec.structs.replace(example(ACKS), epoch=2**63 - 1, decision_id=2**63 - 1, at=1e12),  # type: ignore[call-arg]
            msgspec.structs.replace(example(CONFIG), revision=2**62, config={"ttft_ms": "never"}),  # type: ignore[call-arg]
        ]
        for i, record in enumerate(strange):
            await planner.records.publish(record, message_id=f"strange {i}")
        await planner.records.publish(world.inventory(time.time(), prefill=2, decode=3))
        await planner.records.publish(window("true", now - 4, now + 1, 50))
        await planner.took(INVENTORY, await planner.end_of(INVENTORY))
        report = await planner.took(TRAFFIC, await planner.end_of(TRAFFIC))
        assert {role: r.current for role, r in report.roles.items()} == {"prefill": 2, "decode": 3}
        assert report.load["requests_per_s"] == 10.0
        assert report.config_revision == 0
        for r in report.roles.values():
            assert r.target is None or r.target < 100_000


async def test_strangers_on_the_planner_s_own_streams_change_nothing(planner: Victim) -> None:
    async with planner.bus():
        await planner.records.publish(world.inventory((await planner.report()).at, prefill=2, decode=3))
        epoch = (await planner.report()).epoch
        for stream in (STATE, DECISIONS, TICKS, DEADLETTERS):
            for data in (b"junk", b"", encode(example(TRAFFIC)), b"\xff" * (10 * MiB)):
                await planner.put(stream, data)
        at = (await planner.report()).at
        await planner.records.publish(
            world.proposal("SET", at=at, until=at + 60, proposal_id="after strangers", decode=4, priority=1)
        )
        await planner.took(PROPOSALS, await planner.end_of(PROPOSALS))
        last = await planner.records.last(DECISIONS, DGD)
        assert last is not None
        assert isinstance(last[0], Decision)
        assert (last[0].epoch, last[0].targets["decode"]) == (epoch, 4)
        state = await planner.records.last(STATE, DGD)
        assert state is not None


HEADERS = {
    "no_line": b"NATS/1.0",
    "junk": b"\x00\x01\x02junkjunkjunkjunk",
    "no_utf8": b"NATS/1.0\r\nA: \xff\xfe\r\n\r\n",
    "no_utf8_name": b"NATS/1.0\r\n\xff\xfe: x\r\n\r\n",
    "a_status": b"NATS/1.0 404\r\n\r\n",
    "a_strange_status": b"NATS/1.0 \xff\xff\xff\xff\r\n\r\n",
    "a_heartbeat": b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 99999\r\n\r\n",
    "no_colon": b"NATS/1.0\r\nabc\r\n\r\n",
    "bare_line_feeds": b"NATS/1.0\nA: b\n\n",
    "the_broker_s_own": b"NATS/1.0\r\nNats-Sequence: 5\r\nStatus: 404\r\n\r\n",
}


def send(port: int, subject: str, headers: bytes, data: bytes) -> None:
    """Publish as no client library would."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
        s.recv(4096)
        s.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        s.sendall(b"HPUB %s %d %d\r\n" % (subject.encode(), len(headers), len(headers) + len(data)))
        s.sendall(headers + data + b"\r\nPING\r\n")
        assert b"PONG" in s.recv(4096)


async def test_headers_that_are_none_stop_nobody(planner: Victim) -> None:
    async with planner.bus():
        now = (await planner.report()).at
        before = await planner.end_of(DEADLETTERS)
        for n, headers in enumerate(HEADERS.values()):
            send(planner.server.port, "headrace.traffic.ml.llama", headers, b"junk %d" % n)
        await planner.records.publish(window("after headers", now - 4, now + 1, 35))
        report = await planner.took(TRAFFIC, await planner.end_of(TRAFFIC))
        assert report.load["requests_per_s"] == 7.0
        letters = await planner.letters(before)
        assert [letter.data for letter in letters] == [b"junk %d" % n for n in range(len(HEADERS))]
    assert planner.log.read_text().count("lost NATS") == 0


async def test_the_publisher_of_a_message_beyond_the_server_s_limit_is_told(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        bus = NatsBus(server.url)
        await bus.open()
        await bus.ensure([TRAFFIC])
        client = await core_client(RecordBus(bus, "test", time.time))
        with pytest.raises(errors.MaxPayloadError):
            await client.publish("headrace.traffic.ml.llama", b"x" * (10 * MiB))
        await client.close()
        with pytest.raises(TooLarge, match=r"above the broker's limit of 8388608 bytes \(max_payload on NATS\)"):
            await bus.publish(Outgoing(TRAFFIC.name, DGD, b"x" * (10 * MiB)))
        assert await bus.last(TRAFFIC, DGD) is None
        await bus.close()


@pytest.mark.slow
@needs_proc
async def test_the_planner_s_memory_does_not_grow_with_what_is_thrown_at_it(planner: Victim) -> None:
    rounds, thrown = 4, 0
    seen: list[float] = []
    async with planner.bus():
        at = (await planner.report()).at
        client = await core_client(planner.records)
        before = planner.rss_mib
        for _ in range(rounds):
            for _ in range(25):
                await client.publish("headrace.traffic.ml.llama", b"\xff" * (4 * MiB))
                await client.flush()
            for n in range(20):
                items = [world.FpmItem(at, n, i, b"\xc1" * 8000) for i in range(500)]
                batch = world.FpmBatch(dgd=DGD, role="decode", source=f"{n}", received_at=at, items=items)
                await planner.records.publish(batch, message_id=f"{n} of {len(seen)}")
            await planner.took(FPM, await planner.end_of(FPM))
            await planner.took(TRAFFIC, await planner.end_of(TRAFFIC))
            thrown += 25 * 4 + 20 * 4
            seen.append(planner.rss_mib)
        await client.close()
    print(f"\n{thrown} MiB of garbage: {before:.0f} MiB before, then {', '.join(f'{mib:.0f}' for mib in seen)}")
    assert max(seen) - before < thrown / 2


async def test_dead_letters_are_listed_shown_and_put_back_where_that_helps(planner: Victim) -> None:
    async with planner.bus():
        other = encode(msgspec.structs.replace(EXAMPLES["traffic"], dgd="ml/other"))
        await planner.put(TRAFFIC, b"\xc1 show this")
        await planner.took(TRAFFIC, await planner.put(TRAFFIC, other))
    listed = json.loads(planner.cli("deadletters", "list", "--limit", "2", "--json").stdout)
    assert [(row["stream"], row["reason"], row["reader"]) for row in listed] == [
        ("traffic", "undecodable", "planner"),
        ("traffic", "invalid", "planner"),
    ]
    junk, misplaced = (str(row["position"]) for row in listed)
    shown = planner.cli("deadletters", "show", junk)
    assert "show this" in shown.stdout
    result = planner.cli("deadletters", "requeue", junk, misplaced)
    assert result.returncode == 1
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{junk}: refused: traffic record of")
    assert second.startswith(f"{misplaced}: put back on traffic at")
    async with planner.bus():
        back = await planner.records.last(TRAFFIC, "ml/other")
        assert back is not None
        assert encode(back[0]) == other
