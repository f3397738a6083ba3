"""`headrace streams`: the table needs no bus; a tail shows what is there, and changes nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.memory import MemoryBus
from headrace.schemas.codec import encode
from headrace.schemas.errors import BusError, ConfigError
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.streams import STREAMS
from headrace.streams.cli import streams_tail
from headrace.streams.cli.main import cli
from headrace.streams.cli.streams_tail import Tail, messages, newest, shown, stream_named

TICKS = STREAMS["ticks"]


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    """Five messages on ticks: positions 1, 3, 5 of ml/a, 2 and 4 of ml/b."""
    bus = MemoryBus()
    await bus.open()
    await bus.ensure(STREAMS.values())
    for i in range(5):
        await bus.publish(Outgoing("ticks", f"ml/{'ab'[i % 2]}", str(i).encode()))
    yield bus
    await bus.close()


async def read(bus: MemoryBus, **tail: object) -> list[int]:
    """The positions of what a tail shows."""
    stop = asyncio.Event()
    async with aclosing(messages(bus, TICKS, Tail("ticks", **tail), stop)) as found:  # type: ignore[arg-type]
        return [message.position async for message in found]


def test_the_table_is_printed_without_a_bus(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["streams", "list", "--set", f"bus.store={tmp_path}"], catch_exceptions=False)
    lines = [line.split("\t") for line in result.stdout.splitlines()]
    assert lines[0] == ["name", "record", "kept", "written by", "read by"]
    assert [line[0] for line in lines[1:]] == list(STREAMS)
    assert ["state", "PlannerState", "last per DGD", "planner", "planner"] in lines


def test_the_table_as_json_says_more(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["streams", "list", "--json", "--set", f"bus.store={tmp_path}"], catch_exceptions=False
    )
    assert json.loads(result.stdout)[0] == {
        "name": "fpm",
        "record": "FpmBatch",
        "what": "engine iterations, batched",
        "kept": "10 min",
        "written_by": "event-plane source, simulator",
        "read_by": "planner",
        "codec": "msgpack",
    }


def test_a_stream_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'decisions'"):
        stream_named("decision")
    with pytest.raises(ConfigError, match="the streams are fpm, traffic"):
        stream_named("zzz")


@pytest.mark.parametrize("begin", ["yesterday", "1.5", ""])
def test_a_beginning_that_is_none_is_refused(begin: str) -> None:
    result = CliRunner().invoke(cli, ["streams", "tail", "ticks", "--from", begin])
    assert result.exit_code == 2
    assert "neither start, now nor a whole number" in result.stderr


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (None, [1, 2, 3, 4, 5]),
        ("start", [1, 2, 3, 4, 5]),
        (1, [1, 2, 3, 4, 5]),
        (4, [4, 5]),
        (5, [5]),
        (6, []),  # nothing is there yet
        (10**18, []),
        (-2, [4, 5]),
        (-100, [1, 2, 3, 4, 5]),
        ("now", []),
        (0, []),
    ],
)
async def test_without_following_it_ends_with_what_is_there(
    bus: MemoryBus, begin: str | int | None, expected: list[int]
) -> None:
    assert await read(bus, begin=begin, follow=False) == expected


async def test_one_deployment_alone_may_be_read(bus: MemoryBus) -> None:
    assert await read(bus, dgd="ml/b", follow=False) == [2, 4]
    assert await read(bus, dgd="ml/nobody", follow=False) == []


async def test_an_empty_stream_is_no_error(bus: MemoryBus) -> None:
    stop = asyncio.Event()
    tail = Tail("acks", follow=False)
    assert [m async for m in messages(bus, STREAMS["acks"], tail, stop)] == []


async def test_following_begins_now_and_goes_on(bus: MemoryBus) -> None:
    stop = asyncio.Event()
    async with aclosing(messages(bus, TICKS, Tail("ticks"), stop)) as found:
        first = asyncio.create_task(anext(found))
        await asyncio.sleep(0.05)
        position = await bus.publish(Outgoing("ticks", "ml/a", b"new"))
        assert (await first).position == position


async def test_following_ends_when_it_is_stopped(bus: MemoryBus) -> None:
    stop = asyncio.Event()
    async with aclosing(messages(bus, TICKS, Tail("ticks"), stop)) as found:
        waiting = asyncio.create_task(anext(found, None))
        await asyncio.sleep(0.05)
        stop.set()
        assert await waiting is None


async def test_following_ends_when_nobody_reads_the_pipe_any_more(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_tail.output, "reader_is_gone", lambda: True)
    assert await read(bus) == []


async def test_a_stream_that_nobody_has_made_is_an_error_with_a_remedy() -> None:
    empty = MemoryBus()
    await empty.open()
    with pytest.raises(BusError, match="has `headrace run` been started on this bus, with this prefix"):
        await read(empty, follow=False)


async def test_a_bus_that_is_away_is_said_to_be_away(bus: MemoryBus) -> None:
    bus.broker.available = False
    with pytest.raises(BusError, match="switched off"):
        await read(bus, follow=False)


async def test_reading_leaves_no_reader_and_no_dead_letter(bus: MemoryBus) -> None:
    await read(bus, follow=False)
    assert not bus._readers
    assert (await bus.info(STREAMS["deadletters"])).messages == 0


async def test_the_newest_are_looked_for_further_back_until_they_are_enough(bus: MemoryBus) -> None:
    for i in range(200):
        await bus.publish(Outgoing("ticks", "ml/b", str(i).encode()))
    of_a = await newest(bus, TICKS, "ml/a", asyncio.Event(), lambda some: len(some) >= 2)
    assert [m.position for m in of_a] == [1, 3, 5]
    of_all = await newest(bus, TICKS, None, asyncio.Event(), lambda some: len(some) >= 2)
    assert of_all[-1].position == 205
    assert len(of_all) < 205


async def on_bus(bus: MemoryBus, stream: str, data: bytes) -> dict[str, object]:
    await bus.publish(Outgoing(stream, "ml/llama-70b", data))
    message = await bus.last(STREAMS[stream], "ml/llama-70b")
    assert message is not None
    view: dict[str, object] = json.loads(streams_tail.output.to_json(shown(message)))
    return view


async def test_a_batch_of_fpms_is_shown_with_its_fpms(bus: MemoryBus) -> None:
    view = await on_bus(bus, "fpm", encode(EXAMPLES["fpm"]))
    assert view["position"] == 1
    assert view["dgd"] == "ml/llama-70b"
    item = view["record"]["items"][0]  # type: ignore[index]
    assert item["sequence"] == 898
    assert item["fpm"]["worker_id"] == "9041998999865286175"
    assert item["fpm"]["scheduled_requests"]["sum_decode_kv_tokens"] == 8288


async def test_one_bad_fpm_is_shown_as_such_beside_the_good(bus: MemoryBus) -> None:
    batch = EXAMPLES["fpm"]
    data = (
        encode(batch).replace(b"\xa9wall_time", b"\xa9wall-time", 1).replace(b"\xa7version\x01", b"\xa7version\x09", 1)
    )
    good, bad = sorted((await on_bus(bus, "fpm", data))["record"]["items"], key=lambda i: "error" in i)  # type: ignore[index]
    assert good["fpm"]["version"] == 1
    assert bad["reason"] == "unsupported_version"
    assert "fpm" not in bad


async def test_bytes_that_are_no_record_are_shown_as_such(bus: MemoryBus) -> None:
    view = await on_bus(bus, "decisions", b"\xffjunk")
    assert view["reason"] == "undecodable"
    assert view["data"] == "/2p1bms="
    assert "record" not in view
