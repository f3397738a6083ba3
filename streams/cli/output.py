"""What commands print: tables for people on a terminal, TSV or JSON for the next program in a pipe."""

import os
import select
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click
import msgspec

from headrace.schemas.cloudevents import rfc3339

Row = Mapping[str, Any]

# Bytes of others must not move the cursor of a terminal: control characters are shown, not sent.
_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROLS_IN_JSON = {c: f"\\u{c:04x}" for c in range(0x7F, 0xA0)}  # the others JSON itself escapes
_GAP = 2  # between the columns of a table
_LEAST_WRAPPED = 24  # characters of a column whose text is wrapped
_PRINTABLE = frozenset(string.printable.encode()) - frozenset(b"\t\n\r\x0b\x0c")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a listing; JSON shows the whole rows instead.

    On a narrow terminal optional columns are left out, the last first; `wrap` marks those that may take several lines.
    """

    title: str
    text: Callable[[Row], str]
    right: bool = False
    optional: bool = False
    wrap: bool = False


def on_terminal() -> bool:
    """Does a person read this?"""
    return sys.stdout.isatty()


def write(text: str) -> None:
    """Print a line, at once. Ends the program quietly when nobody reads any more (`| head`)."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_quietly()


def write_bytes(data: bytes) -> None:
    """Print bytes as they are."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _leave_quietly()


def reader_is_gone() -> bool:
    """Has the program behind the pipe ended? Lets a command that waits for something to print end, too."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # not a file: a test
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _leave_quietly() -> None:
    # What is still buffered would complain once more when the interpreter flushes it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise click.exceptions.Exit(0)


def to_json(value: Any, *, pretty: bool = False) -> str:
    """JSON on one line, or indented."""
    text = msgspec.json.encode(value)
    return (msgspec.json.format(text, indent=2) if pretty else text).decode().translate(_CONTROLS_IN_JSON)


def show(rows: Sequence[Row], columns: Sequence[Column], *, as_json: bool) -> None:
    """Print rows: a JSON array if asked for, a table on a terminal, tab-separated values in a pipe."""
    if as_json:
        write(to_json(list(rows), pretty=on_terminal()))
        return
    cells = [[printable(column.text(row)) for column in columns] for row in rows]
    if on_terminal():
        _table(cells, columns)
        return
    for line in ([column.title for column in columns], *cells):
        write("\t".join(line))


def _table(cells: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    chosen = fitting(cells, columns, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in chosen:
        column = columns[i]
        justify: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, no_wrap=not column.wrap, overflow="fold")
    for line in cells:
        table.add_row(*(Text(line[i]) for i in chosen))  # Text: brackets are no markup here
    console.print(table)


def fitting(cells: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[int]:
    """The indices of the columns that fit into a line of so many characters, and of those that must be there."""
    needed = [
        _LEAST_WRAPPED if column.wrap else max(len(column.title), *(len(line[i]) for line in cells), 0)
        for i, column in enumerate(columns)
    ]
    chosen = list(range(len(columns)))
    for i in reversed(range(len(columns))):
        if sum(needed[k] + _GAP for k in chosen) - _GAP <= width:
            break
        if columns[i].optional:
            chosen.remove(i)
    return chosen


def printable(text: str) -> str:
    """A text on one line without control characters."""
    return text.translate(_CONTROLS)


def when(time_s: float | None) -> str:
    """Seconds since the epoch as UTC, to the second: ``2026-12-01T00:55:20Z``; ``-`` for None."""
    if time_s is None:
        return "-"
    full = rfc3339(time_s)
    return f"{time_s:g}" if full is None else full.partition(".")[0] + "Z"


def size(n_bytes: int) -> str:
    """Bytes for people: ``812 B``, ``64.0 KiB``."""
    amount, unit = float(n_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{n_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """A duration for people: ``0.42 s``, ``95 s``, ``12.5 min``; ``-`` for None."""
    if seconds is None:
        return "-"
    if abs(seconds) < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.0f} s" if abs(seconds) < 600 else f"{seconds / 60:.1f} min"


def hexdump(data: bytes) -> str:
    """Offset, sixteen bytes in hexadecimal, and what of them is printable."""
    lines = []
    for offset in range(0, len(data), 16):
        part = data[offset : offset + 16]
        digits = " ".join(f"{byte:02x}" for byte in part)
        text = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in part)
        lines.append(f"{offset:08x}  {digits:<47}  {text}")
    return "\n".join(lines)
