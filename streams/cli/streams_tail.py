"""Follow one stream without being one of its readers: nothing is acknowledged; bad bytes are shown, not reported."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click

from headrace.connectors.bus.base import Bus, Message, Reader
from headrace.schemas.codec import decode, plain
from headrace.schemas.errors import BusError, ConfigError, RecordError
from headrace.schemas.fpm import decode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.streams import STREAMS, Stream
from headrace.streams.cli import output
from headrace.streams.cli.connect import PATIENCE_S, SHORT_PATIENCE_S, Client, open_bus, run_until_stopped
from headrace.streams.settings import Settings

POLL_S = 0.5  # how often a waiting command looks whether its pipe is still read
_FIRST_LOOK = 64  # positions before the end
_WIDER = 8
QUIET_S = 5.0  # for a message that the bus says is there


@dataclass(frozen=True, slots=True)
class Tail:
    """What is asked for. `begin`: start, now, a position, or a negative number of positions before the end."""

    stream: str
    dgd: str | None = None
    begin: str | int | None = None
    limit: int | None = None
    follow: bool = True
    form: str | None = None


def stream_named(name: str) -> Stream:
    """One of the stream table. Raises ConfigError with the nearest name."""
    if name in STREAMS:
        return STREAMS[name]
    near = get_close_matches(name, STREAMS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the streams are {', '.join(STREAMS)}"
    raise ConfigError(f"no stream is called {name!r}: {hint}")


def tail_stream(settings: Settings, tail: Tail) -> None:
    """Print messages until the limit, the end, a signal, or until nobody reads what is printed."""
    stream = stream_named(tail.stream)
    pretty = output.on_terminal() if tail.form is None else tail.form == "pretty"

    async def main(stop: asyncio.Event) -> None:
        client = Client("tail", patience_s=PATIENCE_S if tail.follow else SHORT_PATIENCE_S)
        left = tail.limit
        async with (
            open_bus(settings, client) as records,
            aclosing(messages(records.bus, stream, tail, stop)) as found,
        ):
            async for message in found:
                output.write(_laid_out(message) if pretty else output.to_json(shown(message)))
                left = None if left is None else left - 1
                if left == 0:
                    return

    run_until_stopped(main)


async def newest(
    bus: Bus, stream: Stream, dgd: str | None, stop: asyncio.Event, enough: Callable[[list[Message]], bool]
) -> list[Message]:
    """The newest messages of a stream, oldest first: reads further back until it is `enough`, or all.

    Raises click.Abort when stopped: a part would look like the whole.
    """
    end, back = await end_of(bus, stream), _FIRST_LOOK
    first = (await bus.info(stream)).first_position
    while True:
        begin = max(1, end - back)
        tail = Tail(stream.name, dgd, begin, follow=False)
        found = [message async for message in messages(bus, stream, tail, stop)]
        if stop.is_set():
            raise click.Abort
        if begin <= max(1, first) or (found and enough(found)):
            return found
        back *= _WIDER


async def messages(bus: Bus, stream: Stream, tail: Tail, stop: asyncio.Event) -> AsyncGenerator[Message, None]:
    """The messages that are asked for, in order. Raises BusError where the stream does not exist or cannot be read."""
    end = await end_of(bus, stream)
    after = _after(tail, end)
    if not tail.follow:
        end = await end_of(bus, stream, tail.dgd)
        if (end if after is None else after) >= end:
            return
    async with _reader(bus, stream, tail.dgd, after) as reader:
        quiet_s = 0.0
        while not stop.is_set() and not output.reader_is_gone():
            found = await reader.next(timeout=POLL_S)
            for message in found:
                yield message
            if tail.follow:
                continue
            if found and found[-1].position >= end:
                return
            quiet_s = 0.0 if found else quiet_s + POLL_S
            if quiet_s >= QUIET_S:
                await _complain(bus, stream, tail.dgd, end)
                return


def _after(tail: Tail, end: int) -> int | None:
    match tail.begin:
        case None:
            return None if tail.follow else 0
        case "start":
            return 0
        case "now":
            return None
        case int(position) if position > 0:
            return min(position - 1, end)
        case int(before):
            return max(0, end + before)
    raise ConfigError(f"--from {tail.begin}: start, now, a position, or -N is needed")


async def end_of(bus: Bus, stream: Stream, key: str | None = None) -> int:
    """The position of the newest message, of one DGD or of all; 0 where there is none."""
    try:
        info = await bus.info(stream)
    except BusError as e:
        if not bus.connected:
            raise
        raise BusError(
            f"stream {stream.name} is not there: has `headrace run` been started on this bus, with this prefix? ({e})"
        ) from e
    if key is None:
        return info.last_position if info.messages else 0
    last = await bus.last(stream, key)
    return 0 if last is None else last.position


async def _complain(bus: Bus, stream: Stream, key: str | None, end: int) -> None:
    """Nothing comes although there should be more: retention has taken it, or the bus is away."""
    info = await bus.info(stream)
    if info.messages and info.first_position <= end and (key is None or await bus.last(stream, key) is not None):
        raise BusError(f"stream {stream.name} could not be read up to position {end}: the bus sends nothing; try again")


@asynccontextmanager
async def _reader(bus: Bus, stream: Stream, key: str | None, after: int | None) -> AsyncIterator[Reader]:
    reader = await bus.read(stream, key=key, after=after)
    try:
        yield reader
    finally:
        await reader.close()


def shown(message: Message) -> dict[str, Any]:
    """A message as JSON shows it, with its record, or with the error and the bytes."""
    about = {"position": message.position, "stored_at": message.stored_at, "dgd": message.key}
    try:
        record = decode(message.stream, message.data)
    except RecordError as e:
        return about | {"error": str(e), "reason": e.reason, "data": b64encode(message.data).decode()}
    view = plain(record)
    if isinstance(record, FpmBatch):
        view["items"] = [_item(item) for item in record.items]
    return about | {"record": view}


def _item(item: FpmItem) -> dict[str, Any]:
    """An item of a batch with its FPM, which is msgpack inside msgpack on the wire."""
    about: dict[str, Any] = {
        "published_at": item.published_at,
        "publisher_id": item.publisher_id,
        "sequence": item.sequence,
    }
    try:
        return about | {"fpm": decode_fpm(item.payload)}
    except RecordError as e:
        return about | {"error": str(e), "reason": e.reason, "payload": b64encode(item.payload).decode()}


def _laid_out(message: Message) -> str:
    view = shown(message)
    head = f"{message.stream} {message.position}  {output.when(message.stored_at)}  {message.key}"
    body = view["record"] if "record" in view else {key: view[key] for key in ("error", "reason", "data")}
    head = click.style(output.printable(head), bold=True) if output.on_terminal() else output.printable(head)
    return f"{head}\n{output.to_json(body, pretty=True)}"
