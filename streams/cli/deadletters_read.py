"""Dead letters, listed and shown."""

import asyncio
from collections.abc import Iterable
from typing import Any

import click
import msgspec

from headrace.connectors.bus.base import Bus, Message
from headrace.schemas.codec import decode, plain
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import ConfigError, RecordError
from headrace.schemas.streams import DEADLETTERS, STREAMS
from headrace.streams.cli import output
from headrace.streams.cli.connect import SHORT_PATIENCE_S, Client, open_bus, run_until_stopped
from headrace.streams.cli.output import Column
from headrace.streams.cli.streams_tail import Tail, end_of, messages, newest
from headrace.streams.settings import Settings

UNREADABLE = "unreadable_letter"

COLUMNS = (
    Column("position", lambda row: str(row["position"]), right=True),
    Column("time", lambda row: output.when(row["time"])),
    Column("reason", lambda row: str(row["reason"])),
    Column("stream", lambda row: str(row["stream"])),
    Column("at", lambda row: "-" if row["at"] is None else str(row["at"]), right=True, optional=True),
    Column("size", lambda row: str(row["size"]), right=True, optional=True),
    Column("dgd", lambda row: str(row["dgd"]), optional=True),
    Column("message", lambda row: str(row["message"]), wrap=True),
)


def list_letters(settings: Settings, *, dgd: str | None, reason: str | None, limit: int, as_json: bool) -> None:
    """Print the newest letters, oldest first."""

    async def main(stop: asyncio.Event) -> list[Message]:
        def enough(some: list[Message]) -> bool:
            return sum(_matches(message, reason) for message in some) >= limit

        async with open_bus(settings, Client("deadletters", patience_s=SHORT_PATIENCE_S)) as records:
            return await newest(records.bus, DEADLETTERS, dgd, stop, enough)

    found = [message for message in run_until_stopped(main) if _matches(message, reason)]
    output.show([_row(message) for message in found[-limit:]], COLUMNS, as_json=as_json)


def show_letter(settings: Settings, position: int, form: str) -> None:
    """Print one letter. Raises ConfigError where there is none at that position, RecordError where it is unreadable."""

    async def main(stop: asyncio.Event) -> dict[int, Message]:
        async with open_bus(settings, Client("deadletters", patience_s=SHORT_PATIENCE_S)) as records:
            return await letters_at(records.bus, [position], stop)

    message = run_until_stopped(main)[position]
    record = decode(DEADLETTERS, message.data)
    assert isinstance(record, DeadLetter)
    if form == "raw":
        output.write_bytes(record.data)
    elif form == "json":
        output.write(output.to_json(plain(record), pretty=output.on_terminal()))
    else:
        for line in laid_out(position, record, as_hex=form == "hex"):
            output.write(line)


async def letters_at(bus: Bus, positions: Iterable[int], stop: asyncio.Event) -> dict[int, Message]:
    """The messages at these positions. Raises ConfigError where there is none."""
    end = await end_of(bus, DEADLETTERS)
    found: dict[int, Message] = {}
    for position in positions:
        tail = Tail(DEADLETTERS.name, begin=position, limit=1, follow=False)
        if position <= end:
            async for message in messages(bus, DEADLETTERS, tail, stop):
                found[message.position] = message
        if stop.is_set():
            raise click.Abort
        if position not in found:
            raise ConfigError(f"there is no dead letter at position {position}: `headrace deadletters list` shows them")
    return found


def as_letter(message: Message) -> DeadLetter | None:
    """The letter in a message, or None where it cannot be read."""
    try:
        record = decode(DEADLETTERS, message.data)
    except RecordError:
        return None
    assert isinstance(record, DeadLetter)
    return record


def _matches(message: Message, reason: str | None) -> bool:
    if reason is None:
        return True
    letter = as_letter(message)
    return letter is not None and letter.reason == reason


def _row(message: Message) -> dict[str, Any]:
    letter = as_letter(message)
    if letter is None:
        about = {"reason": UNREADABLE, "stream": DEADLETTERS.name, "at": message.position, "size": len(message.data)}
        return {"position": message.position, "time": message.stored_at, "dgd": message.key, **about, "message": "-"}
    return {
        "position": message.position,
        "time": letter.at,
        "dgd": letter.dgd,
        "reason": letter.reason,
        "stream": letter.stream,
        "at": letter.position,
        "item": letter.item,
        "size": letter.size,
        "reader": letter.reader,
        "message": letter.message,
    }


def laid_out(position: int, letter: DeadLetter, *, as_hex: bool) -> Iterable[str]:
    """Lines for people: what is known of the letter, the headers that the bytes had, the bytes."""
    place = (
        ""
        if letter.position is None
        else f" at {letter.position}" + ("" if letter.item is None else f", item {letter.item}")
    )
    about = {
        "position": str(position),
        "time": output.when(letter.at),
        "dgd": letter.dgd,
        "reason": letter.reason,
        "message": letter.message,
        "from": f"{letter.stream}{place}",
        "reader": letter.reader,
        "size": f"{letter.size} bytes" + (f", {len(letter.data)} kept" if len(letter.data) < letter.size else ""),
        **{f"header {name}": value for name, value in sorted(letter.headers.items())},
    }
    width = max(map(len, about))
    for name, value in about.items():
        yield f"{name:<{width}}  {output.printable(value)}"
    yield ""
    readable = None if as_hex else readable_bytes(letter)
    yield output.hexdump(letter.data) if readable is None else readable


def readable_bytes(letter: DeadLetter) -> str | None:
    """Bad bytes as indented JSON where they are JSON or msgpack after all; None where they are neither."""
    codec = STREAMS[letter.stream].codec if letter.stream in STREAMS and letter.item is None else "msgpack"
    decoders = (msgspec.json.decode, msgspec.msgpack.decode)
    for decoder in decoders if codec == "json" else reversed(decoders):
        try:
            value = decoder(letter.data)
            if isinstance(value, dict | list):  # almost any byte is a number in msgpack
                return output.to_json(value, pretty=True)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, TypeError, ValueError):
            continue
    return None
