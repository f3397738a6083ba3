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
from headrace.streams.cli.streams_tail import Tail, messages
from headrace.streams.settings import Settings

_OWNED = (DECISIONS, STATE, DEADLETTERS)
Origin = tuple[str, int | None, int | None]
Chosen = tuple[Message, DeadLetter | None]  # None: the letter itself cannot be read


def requeue_letters(settings: Settings, positions: Sequence[int], *, reason: str | None, dgd: str | None) -> int:
    """Requeue the letters at these positions, or all with a reason; say what became of each. How many were refused."""

    async def main(stop: asyncio.Event) -> int:
        async with open_bus(settings, Client("requeue", patience_s=SHORT_PATIENCE_S)) as records:
            return await requeue_all(records, await chosen_letters(records, positions, reason, dgd, stop), stop)

    return run_until_stopped(main)


async def chosen_letters(
    records: RecordBus, positions: Sequence[int], reason: str | None, dgd: str | None, stop: asyncio.Event
) -> list[Chosen]:
    """The letters at these positions; or those with a reason, one for each origin: several may have met the bytes."""
    if reason is None:
        found = await letters_at(records.bus, positions, stop)
        return [(found[position], as_letter(found[position])) for position in positions]
    by_origin: dict[Origin, Chosen] = {}
    async for message in messages(records.bus, DEADLETTERS, Tail(DEADLETTERS.name, dgd, follow=False), stop):
        letter = as_letter(message)
        if letter is not None and letter.reason == reason:
            origin = (letter.stream, letter.position if letter.position is not None else -message.position, letter.item)
            by_origin.setdefault(origin, (message, letter))
    return list(by_origin.values())


async def requeue_all(records: RecordBus, chosen: Iterable[Chosen], stop: asyncio.Event) -> int:
    """Requeue letters and say what became of each. Returns how many were refused."""
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
