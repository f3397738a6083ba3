"""Request traces: when a request arrives, how long its prompt is, how many tokens it generates.

Reading is strict: one bad line refuses the file (a partly read trace looks like a lighter load). Lines out of order
are sorted, since shards are often concatenated. Times begin at zero with the first request.
"""

import csv
import gzip
import math
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

import msgspec

from headrace.schemas.errors import ConfigError

AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
LONGEST_SPAN_S = 31 * 86_400.0
MAX_TOKENS = 100_000_000  # no context is that long; a larger number is a unit mistake

Row = tuple[float, int, int]  # arrival in seconds, isl, osl


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival: `arrivals` in seconds from zero, `isl` and `osl` in tokens; equal lengths."""

    name: str
    arrivals: tuple[float, ...]
    isl: tuple[int, ...]
    osl: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def duration_s(self) -> float:
        """From zero to the last arrival."""
        return self.arrivals[-1] if self.arrivals else 0.0

    def rows(self) -> Iterator[Row]:
        return zip(self.arrivals, self.isl, self.osl, strict=True)


def trace_of(name: str, rows: Iterable[Row]) -> Trace:
    """A trace of rows in any order. Equal arrivals keep their order."""
    ordered = sorted(rows, key=lambda row: row[0])
    return Trace(name, tuple(r[0] for r in ordered), tuple(r[1] for r in ordered), tuple(r[2] for r in ordered))


def load_trace(path: str | Path) -> Trace:
    """Read an Azure CSV (`.csv`) or a Mooncake JSONL (`.jsonl`) file, either also gzipped (`.gz`).

    Raises ConfigError naming the file, the line, the rule and the remedy; never returns a part of a file.
    """
    path = Path(path)
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    readers = {"csv": _azure_rows, "jsonl": _mooncake_rows}
    if kind not in readers:
        raise ConfigError(
            f"{path}: not a trace: name it .csv (Azure) or .jsonl (Mooncake), with .gz if it is compressed"
        )
    try:
        with _open(path) as lines:
            rows = list(readers[kind](path, lines))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as e:
        raise ConfigError(
            f"{path}: cannot be read as text ({e}): check that it is whole and its .gz suffix right"
        ) from e
    if not rows:
        raise ConfigError(f"{path}: has no requests: a trace needs at least one")
    start = min(row[0] for row in rows)
    _check_span(path, rows, start)
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    return trace_of(name, ((at - start, isl, osl) for at, isl, osl in rows))


def _check_span(path: Path, rows: list[Row], start: float) -> None:
    """One wild timestamp would be simulated second by second."""
    last = max(range(len(rows)), key=lambda i: rows[i][0])
    span_s = rows[last][0] - start
    if span_s > LONGEST_SPAN_S:
        raise ConfigError(
            f"{path}: request {last + 1} comes {span_s / 86_400:.0f} days after the first: a trace may span "
            f"{LONGEST_SPAN_S / 86_400:.0f} days; repair its timestamp (milliseconds in JSONL), or cut the trace"
        )


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _azure_rows(path: Path, lines: TextIO) -> Iterator[Row]:
    """Seconds since the epoch, isl, osl. The timestamps' zone does not matter, but all must have one or none."""
    reader = csv.reader(lines)
    header = next(reader, None)
    if header != AZURE_COLUMNS:
        raise ConfigError(f"{path}:1: header is {header}, not {AZURE_COLUMNS}: give an Azure LLM inference trace")
    zoned: bool | None = None
    for line, fields in enumerate(reader, start=2):
        if len(fields) != len(AZURE_COLUMNS):
            raise ConfigError(f"{path}:{line}: {len(fields)} fields instead of 3: repair or remove the line")
        try:
            at = datetime.fromisoformat(fields[0])
        except ValueError as e:
            raise ConfigError(f"{path}:{line}: TIMESTAMP {fields[0]!r} is not a date and time: repair the line") from e
        if zoned is not None and zoned != (at.tzinfo is not None):
            raise ConfigError(f"{path}:{line}: TIMESTAMP with and without a time zone are mixed: write all alike")
        zoned = at.tzinfo is not None
        seconds = (at - datetime(1970, 1, 1, tzinfo=at.tzinfo)).total_seconds()
        yield (
            seconds,
            _tokens(path, line, "ContextTokens", fields[1]),
            _tokens(path, line, "GeneratedTokens", fields[2]),
        )


def _tokens(path: Path, line: int, name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_TOKENS:
        raise ConfigError(
            f"{path}:{line}: {name} is {text!r}, not a whole number of at least 1: repair or remove the line"
        )
    return int(text)


class _MooncakeLine(msgspec.Struct):
    """Other fields (hash_ids) are ignored: prefix caching is not simulated."""

    timestamp: float
    input_length: int
    output_length: int


_decode_line = msgspec.json.Decoder(_MooncakeLine).decode


def _mooncake_rows(path: Path, lines: TextIO) -> Iterator[Row]:
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            r = _decode_line(text)
        except msgspec.DecodeError as e:
            raise ConfigError(
                f"{path}:{line}: {e}: every line must be a Mooncake request with timestamp (ms), input_length and "
                "output_length; repair the line, or split a file that mixes formats"
            ) from e
        if not 0.0 <= r.timestamp < math.inf:
            raise ConfigError(f"{path}:{line}: timestamp {r.timestamp} must be milliseconds from zero: repair the line")
        for name, tokens in (("input_length", r.input_length), ("output_length", r.output_length)):
            if not 1 <= tokens <= MAX_TOKENS:
                raise ConfigError(f"{path}:{line}: {name} is {tokens}, not at least 1: repair or remove the line")
        yield r.timestamp / 1000.0, r.input_length, r.output_length


def overlay(trace: Trace, copies: int, *, jitter_s: float = 15.0, seed: int = 1) -> Trace:
    """`copies` of a trace at once: the shape stays, the level rises.

    The first copy is as it is; each request of the others moves by up to `jitter_s` either way (never before zero).
    """
    if copies < 1:
        raise ConfigError(f"a trace cannot be overlaid {copies} times: give at least 1")
    rng = random.Random(seed)
    rows: list[Row] = list(trace.rows())
    for _ in range(copies - 1):
        rows += [(max(0.0, at + rng.uniform(-jitter_s, jitter_s)), isl, osl) for at, isl, osl in trace.rows()]
    return trace_of(trace.name if copies == 1 else f"{trace.name} x{copies}", rows)


def scale_time(trace: Trace, factor: float) -> Trace:
    """Stretch (factor > 1) or compress (< 1) the arrivals; the rate changes inversely."""
    _check_factor(factor)
    return Trace(f"{trace.name} time x{factor:g}", tuple(at * factor for at in trace.arrivals), trace.isl, trace.osl)


def scale_rate(trace: Trace, factor: float, *, seed: int = 1) -> Trace:
    """`factor` times the requests over the same time: whole copies overlaid, the rest a random part of one more."""
    _check_factor(factor)
    whole = int(factor)
    rng = random.Random(seed)
    part = [
        (max(0.0, at + rng.uniform(-15.0, 15.0)), isl, osl)
        for at, isl, osl in trace.rows()
        if rng.random() < factor - whole
    ]
    rows = list(overlay(trace, whole, seed=seed).rows()) if whole else []
    return trace_of(f"{trace.name} x{factor:g}", [*rows, *part])


def between(trace: Trace, start_s: float, end_s: float) -> Trace:
    """The requests that arrive in [start_s, end_s), with times from zero again."""
    rows: Sequence[Row] = [(at - start_s, isl, osl) for at, isl, osl in trace.rows() if start_s <= at < end_s]
    return trace_of(f"{trace.name} {start_s:g}-{end_s:g} s", rows)


def _check_factor(factor: float) -> None:
    if not 0.0 < factor < math.inf:
        raise ConfigError(f"a trace cannot be scaled by {factor}: give a finite factor above zero")
