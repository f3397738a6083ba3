"""Dead letters: shown so that a person understands them, put back only where that can help."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from click.testing import CliRunner

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.memory import MemoryBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.codec import encode
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import ConfigError
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.fpm import Fpm, encode_fpm
from headrace.schemas.streams import STREAMS
from headrace.streams.cli.deadletters_read import laid_out, letters_at, readable_bytes
from headrace.streams.cli.deadletters_requeue import chosen_letters, requeue_all
from headrace.streams.cli.main import cli

DGD = "ml/llama-70b"


def letter(stream: str = "traffic", data: bytes = b"junk", **more: object) -> DeadLetter:
    fields: dict[str, object] = {
        "dgd": DGD,
        "reason": "undecodable",
        "message": "not JSON",
        "reader": "planner",
        "position": 7,
        "at": 1796086520.0,
        "size": len(data),
    }
    return DeadLetter(stream=stream, data=data, **(fields | more))  # type: ignore[arg-type]


def shown(found: DeadLetter, *, as_hex: bool = False) -> list[str]:
    return list(laid_out(12, found, as_hex=as_hex))


def test_a_letter_is_shown_with_what_is_known_of_it() -> None:
    lines = shown(letter(headers={"ce-id": "7", "ce-source": "/headrace/x"}))
    fields = dict(line.split("  ", 1) for line in lines[: lines.index("")])
    assert {name.strip(): value.strip() for name, value in fields.items()} == {
        "position": "12",
        "time": "2026-12-01T00:55:20Z",
        "dgd": DGD,
        "reason": "undecodable",
        "message": "not JSON",
        "from": "traffic at 7",
        "reader": "planner",
        "size": "4 bytes",
        "header ce-id": "7",
        "header ce-source": "/headrace/x",
    }
    assert lines[-1] == "00000000  6a 75 6e 6b                                      junk"


def test_a_letter_cannot_move_the_cursor() -> None:
    lines = shown(letter(message="\x1b[2J", headers={"x": "\x9b31m"}, data=b"\x1b[31m"))
    assert not any("\x1b" in line or "\x9b" in line for line in lines)


def test_bytes_that_were_cut_are_said_to_be_cut() -> None:
    assert "size      70000 bytes, 4 kept" in shown(letter(size=70_000))


def test_an_item_of_a_batch_says_so() -> None:
    assert "from      fpm at 7, item 3" in shown(letter("fpm", item=3))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (letter(data=b'{"a": 1}'), '{\n  "a": 1\n}'),
        (letter("fpm", msgspec.msgpack.encode({"a": b"x"})), '{\n  "a": "eA=="\n}'),
        (letter("fpm", b'{"a": 1}'), '{\n  "a": 1\n}'),  # JSON on a msgpack stream
        (letter("namespace.dynamo.component.x", msgspec.msgpack.encode([1])), "[\n  1\n]"),
    ],
)
def test_readable_bytes_are_laid_out(found: DeadLetter, text: str) -> None:
    assert readable_bytes(found) == text
    assert "00000000" in shown(found, as_hex=True)[-1]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x05", b"\xff\xfe", b'{"a":', b"[" * 100_000, b"\x81" * 100_000, msgspec.msgpack.encode({(1, 2): 3})],
)
def test_bytes_that_nothing_reads_are_a_hexdump(data: bytes) -> None:
    assert readable_bytes(letter(data=data)) is None


@pytest.fixture
async def records() -> AsyncIterator[RecordBus]:
    bus = MemoryBus()
    await bus.open()
    await bus.ensure(STREAMS.values())
    yield RecordBus(bus, "test", lambda: 1796086600.0)
    await bus.close()


async def requeue(records: RecordBus, found: DeadLetter, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Puts a letter on the bus and requeues it: how many were refused, and what was said."""
    position = await records.publish(found)
    stop = asyncio.Event()
    chosen = await chosen_letters(records, [position], None, None, stop)
    refused = await requeue_all(records, chosen, stop)
    return refused, capsys.readouterr().out


async def test_good_bytes_go_back_where_they_came_from(records: RecordBus, capsys: pytest.CaptureFixture[str]) -> None:
    data = encode(EXAMPLES["traffic"])
    refused, said = await requeue(records, letter(data=data, headers={"ce-id": "7"}), capsys)
    assert (refused, said) == (0, "1: put back on traffic at 1\n")
    message = await records.bus.last(STREAMS["traffic"], DGD)
    assert message is not None
    assert message.data == data
    assert message.headers["ce-id"] == "7"
    assert "headrace-requeued" in message.headers


async def test_requeuing_twice_counts_once(records: RecordBus, capsys: pytest.CaptureFixture[str]) -> None:
    found = letter(data=encode(EXAMPLES["traffic"]))
    await requeue(records, found, capsys)
    refused, _ = await requeue(records, found, capsys)
    assert refused == 0
    assert (await records.bus.info(STREAMS["traffic"])).messages == 1


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (letter(), "traffic record of 4 bytes"),
        (letter(data=encode(EXAMPLES["acks"])), "only 'headrace.traffic.v1' is known here"),
        (letter("namespace.dynamo.component.x", b"x", position=None), "no stream of ours"),
        (letter("fpm", encode_fpm(Fpm(worker_id="1")), item=0), "item 0 of a batch"),
        (letter(data=encode(EXAMPLES["traffic"]), size=70_000), "70000 bytes were kept"),
        (letter("decisions", encode(EXAMPLES["decisions"])), "decisions is written by the planner"),
        (letter("state", encode(EXAMPLES["state"])), "state is written by the planner"),
        (letter("deadletters", encode(EXAMPLES["deadletters"])), "deadletters is written by"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_help_is_refused_with_the_reason(
    records: RecordBus, capsys: pytest.CaptureFixture[str], found: DeadLetter, says: str
) -> None:
    refused, said = await requeue(records, found, capsys)
    assert refused == 1
    assert said.startswith("1: refused: ")
    assert says in said
    if found.stream in STREAMS and found.stream != "deadletters":
        assert (await records.bus.info(STREAMS[found.stream])).messages == 0


async def test_an_old_inventory_does_not_hide_a_newer_one(
    records: RecordBus, capsys: pytest.CaptureFixture[str]
) -> None:
    data = encode(EXAMPLES["inventory"])
    for _ in range(2):
        await records.bus.publish(Outgoing("inventory", DGD, data))
    refused, said = await requeue(records, letter("inventory", data, position=1), capsys)
    assert refused == 1
    assert f"a newer record of {DGD} is on inventory, at 2" in said
    assert (await requeue(records, letter("inventory", data, position=2), capsys))[0] == 0


async def test_a_reason_chooses_letters_and_each_place_once(records: RecordBus) -> None:
    await records.publish(letter(position=1))
    await records.publish(letter(position=1, reader="another"))
    await records.publish(letter(position=2, reason="invalid"))
    await records.publish(letter(position=3))
    await records.publish(letter(position=3, dgd="ml/b"))
    await records.bus.publish(Outgoing("deadletters", DGD, b"junk"))
    chosen = await chosen_letters(records, [], "undecodable", DGD, asyncio.Event())
    assert [(found.position, found.dgd) for _, found in chosen if found] == [(1, DGD), (3, DGD)]


async def test_a_letter_that_cannot_be_read_is_refused(records: RecordBus, capsys: pytest.CaptureFixture[str]) -> None:
    await records.bus.publish(Outgoing("deadletters", DGD, b"junk"))
    stop = asyncio.Event()
    chosen = await chosen_letters(records, [1], None, None, stop)
    assert await requeue_all(records, chosen, stop) == 1
    assert capsys.readouterr().out == "1: refused: the letter itself cannot be read\n"


@pytest.mark.parametrize("position", [2, 10**15])
async def test_a_position_without_a_letter_is_an_error(records: RecordBus, position: int) -> None:
    await records.publish(letter())
    with pytest.raises(ConfigError, match=f"no dead letter at position {position}"):
        await letters_at(records.bus, [1, position], asyncio.Event())


@pytest.mark.parametrize("args", [[], ["1", "--reason", "invalid"]])
def test_requeue_needs_either_positions_or_a_reason(args: list[str]) -> None:
    result = CliRunner().invoke(cli, ["deadletters", "requeue", *args])
    assert result.exit_code == 2
    assert "either positions or --reason" in result.stderr
