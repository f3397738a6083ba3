"""Putting dead letters back on the streams that they came from."""

import asyncio
from collections.abc import Iterable, Sequence

import click

from headrace.connectors.bus.base import Message
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import RecordError
from headrace.schemas.streams import DEADLETTERS, DECISIONS, STATE, STREAMS
from headrace.streams.cli import output
from headrace.streams.cli.connect import SHORT_PATIENCE_S, Client, open_bus, run_until_stopped
from headrace.streams.cli.deadletters_read import as_letter, letters_at
from headrace.streams.cli.settings import Settings
from headrace.streams.cli.streams_tail import Tail, messages

_OWNED = (DECISIONS, STATE, DEADLETTERS)
Origin = tuple[str, int | None, int | None]


def requeue_letters(settings: Settings, positions: Sequence[int], *, reason: str | None, dgd: str | None) -> int:
    """Requeue the letters at these positions, or all with a reason; say what became of each. How many were refused."""

    async def main(stop: asyncio.Event) -> int:
        async with open_bus(settings, Client("requeue", patience_s=SHORT_PATIENCE_S)) as records:
            if reason is None:
                found = await letters_at(records.bus, positions, stop)
                chosen = [(found[position], as_letter(found[position])) for position in positions]
            else:
                chosen = await _with_reason(records, reason, dgd, stop)
            return await _requeue_all(records, chosen, stop)

    return run_until_stopped(main)


async def _with_reason(
    records: RecordBus, reason: str, dgd: str | None, stop: asyncio.Event
) -> list[tuple[Message, DeadLetter | None]]:
    """The letters with a reason; one for each origin, for several readers may have met the same bytes."""
    by_origin: dict[Origin, tuple[Message, DeadLetter | None]] = {}
    async for message in messages(records.bus, DEADLETTERS, Tail(DEADLETTERS.name, dgd, follow=False), stop):
        letter = as_letter(message)
        if letter is not None and letter.reason == reason:
            origin = (letter.stream, letter.position if letter.position is not None else -message.position, letter.item)
            by_origin.setdefault(origin, (message, letter))
    return list(by_origin.values())


async def _requeue_all(
    records: RecordBus, chosen: Iterable[tuple[Message, DeadLetter | None]], stop: asyncio.Event
) -> int:
    refused = 0
    for message, letter in chosen:
        if stop.is_set():
            raise click.Abort
        try:
            said = await _requeue(records, letter)
        except RecordError as e:
            refused += 1
            said = f"refused: {e}"
        output.write(output.printable(f"{message.position}: {said}"))
    return refused


async def _requeue(records: RecordBus, letter: DeadLetter | None) -> str:
    """What was done. Raises RecordError where it is refused."""
    if letter is None:
        raise RecordError("the letter itself cannot be read")
    await _check(records, letter)
    return f"put back on {letter.stream} at {await records.requeue(letter)}"


async def _check(records: RecordBus, letter: DeadLetter) -> None:
    """What `RecordBus.requeue` does not know: who owns a stream, and what has come since. Raises RecordError."""
    stream = STREAMS.get(letter.stream)
    if stream is None:
        return  # refused there
    if stream in _OWNED:
        raise RecordError(f"{stream.name} is written by {stream.may_write}; it goes on by itself")
    if stream.last_only and letter.position is not None:
        last = await records.bus.last(stream, letter.dgd)
        if last is not None and last.position > letter.position:
            raise RecordError(
                f"a newer record of {letter.dgd} is on {stream.name}, at {last.position}: the old one would hide it"
            )
