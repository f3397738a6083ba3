"""The stream table, and beside it what a bus holds of each stream."""

import asyncio
from typing import Any

import click

from headrace.connectors.bus.base import Bus
from headrace.schemas.errors import BusError
from headrace.schemas.streams import STREAMS, Stream
from headrace.streams.cli import output
from headrace.streams.cli.connect import (
    SHORT_PATIENCE_S,
    Client,
    open_bus,
    run_until_stopped,
    running_server,
    store_of,
)
from headrace.streams.cli.output import Column, Row
from headrace.streams.settings import Settings

_NEWEST_S = 2.0  # how long the newest message may take to come

TABLE = (
    Column("name", lambda row: row["name"]),
    Column("record", lambda row: row["record"], optional=True),
    Column("kept", lambda row: row["kept"], optional=True),
    Column("written by", lambda row: row["written_by"], optional=True, wrap=True),
    Column("read by", lambda row: row["read_by"], optional=True, wrap=True),
)


def _number(name: str, *, optional: bool = False) -> Column:
    return Column(name, lambda row: "-" if row[name] is None else str(row[name]), right=True, optional=optional)


def _bytes(row: Row) -> str:
    if row["bytes"] is None:
        return "-"
    return output.size(row["bytes"]) if output.on_terminal() else str(row["bytes"])


CONTENT = (
    _number("messages"),
    Column("bytes", _bytes, right=True),
    _number("first", optional=True),
    _number("last"),
    Column("last time", lambda row: output.when(row["last_time"])),
)
NOTHING = {"messages": None, "bytes": None, "first": None, "last": None, "last_time": None}


def list_streams(settings: Settings, *, as_json: bool) -> None:
    """Print the table; with what a bus holds where there is one. Raises BusError when a named one cannot be reached."""
    rows = [_row(stream) for stream in STREAMS.values()]
    store = store_of(settings.edges.bus)
    if store is not None and running_server(store) is None:
        output.show(rows, TABLE, as_json=as_json)
        if output.on_terminal() and not as_json:
            click.echo("What a bus holds of them: name one with --bus nats://HOST:PORT.", err=True)
        return
    contents = run_until_stopped(lambda _: _contents(settings))
    columns = (TABLE[0], *CONTENT, *TABLE[1:]) if output.on_terminal() else (*TABLE, *CONTENT)
    output.show([row | content for row, content in zip(rows, contents, strict=True)], columns, as_json=as_json)


def _row(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "record": stream.record.__name__,
        "what": stream.what,
        "kept": stream.kept,
        "written_by": stream.written_by,
        "read_by": stream.read_by,
        "codec": stream.codec,
    }


async def _contents(settings: Settings) -> list[dict[str, Any]]:
    async with open_bus(settings, Client("streams", patience_s=SHORT_PATIENCE_S)) as records:
        return list(await asyncio.gather(*(_content(records.bus, stream) for stream in STREAMS.values())))


async def _content(bus: Bus, stream: Stream) -> dict[str, Any]:
    """What a stream holds; nothing where it has not been created yet."""
    try:
        info = await bus.info(stream)
    except BusError:
        if not bus.connected:
            raise
        return NOTHING
    return {
        "messages": info.messages,
        "bytes": info.size_bytes,
        "first": info.first_position if info.messages else None,
        "last": info.last_position if info.messages else None,
        "last_time": await _newest_time(bus, stream, info.last_position) if info.messages else None,
    }


async def _newest_time(bus: Bus, stream: Stream, position: int) -> float | None:
    reader = await bus.read(stream, after=position - 1)
    try:
        found = await reader.next(timeout=_NEWEST_S)
    finally:
        await reader.close()
    return found[-1].stored_at if found else None
