"""A recorded trace for forecasters to warm up with: `load_predictor_warmup_trace`.

A file, a pattern or a folder of `.jsonl` and `.jsonl.gz`, in one of two formats: Mooncake (`timestamp` in ms,
`input_length`, `output_length`) or `dynamo.request.trace.v1`. Shards may come in any order. Or one `.csv`, of rates or
of requests, as `headrace forecast evaluate` reads it. Reading is strict: a trace that was read in part looks like a
lighter load, so one bad line, or a second format, refuses all of it.
"""

import asyncio
import glob
import gzip
import logging
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.connectors.simulator.traces import LONGEST_SPAN_S, load_trace
from headrace.models.forecast.resample import resample
from headrace.models.forecast.windows import Window, lengths, windows
from headrace.schemas.errors import ConfigError
from headrace.streams.planner import Planner
from headrace.streams.runtime.recorded_load import is_rates, read_rates

log = logging.getLogger("headrace.planner")

KEY = "load_predictor_warmup_trace"
TRACE = "dynamo.request.trace.v1"
REQUEST_END = "request_end"
ENDINGS = (".jsonl", ".jsonl.gz")
MOST_TOKENS = 100_000_000
LONGEST_NOTE = 400  # characters

Row = tuple[float, int, int]  # arrival in seconds, input tokens, output tokens


def warm_up(planner: Planner) -> bool:
    """Teach a planner that has seen no request the trace of its configuration, if that names one. True if it did.

    What it has learned is part of its state, so it happens once in the life of a DGD. Raises ConfigError for a trace
    that cannot be used; the planner is as it was then.
    """
    config, forecasts = planner.config, planner.forecasts
    source = config.load_predictor_warmup_trace
    if source is None or not config.throughput_loop or forecasts.warmed_by or not forecasts.empty:
        return False
    forecasts.warm_up(source, recorded_load(source, config.throughput_adjustment_interval_seconds))
    return True


async def warm_up_apart(planner: Planner) -> None:
    """The same beside the event loop, which has other DGDs to plan. A bad trace is said, and planned without."""
    try:
        if await asyncio.to_thread(warm_up, planner):
            log.info("%s: forecasts begin with what %s shows", planner.dgd, planner.forecasts.warmed_by)
    except ConfigError as e:
        log.error("%s: forecasts begin with nothing: %s", planner.dgd, e)
        planner.notes.append(f"forecasts begin with nothing: {e}"[:LONGEST_NOTE])


def recorded_load(source: str, interval_s: float) -> dict[str, list[float]]:
    """Rates and mean lengths in windows of `interval_s`, by series. Raises ConfigError naming what is wrong and where.

    A CSV of rates says nothing about lengths.
    """
    path = Path(source)
    if path.is_file() and path.name.removesuffix(".gz").endswith(".csv"):
        if is_rates(path):
            own_s, values = read_rates(path)
            return {"rate": resample(values, own_s, interval_s, len(values) * int(1 + own_s / interval_s))}
        found = windows(load_trace(path).rows(), interval_s)
    else:
        found = warmup_windows(source, interval_s)
    return {
        "rate": [w.requests / interval_s for w in found],
        "isl": lengths(w.isl for w in found),
        "osl": lengths(w.osl for w in found),
    }


def warmup_windows(source: str, interval_s: float) -> list[Window]:
    """The trace in windows of `interval_s`, empty ones in the middle kept. Raises ConfigError naming file and line."""
    rows: list[Row] = []
    formats: dict[str, str] = {}  # format -> where it was first seen
    for path in warmup_files(source):
        for line, raw in enumerate(_lines(path), start=1):
            where = f"{KEY}: {path}:{line}"
            found = _read(where, raw)
            if found is None:
                continue
            kind, row = found
            formats.setdefault(kind, where)
            if len(formats) > 1:
                other = next(at for name, at in formats.items() if name != kind)
                raise ConfigError(f"{where}: is {kind}, but {other} is not: give a trace of one format")
            if row is not None:
                rows.append(row)
    if not rows:
        raise ConfigError(f"{KEY}: {source} holds no request")
    span_s = max(rows)[0] - min(rows)[0]
    if span_s > LONGEST_SPAN_S:
        raise ConfigError(
            f"{KEY}: {source} spans {span_s / 86_400:.0f} days, above {LONGEST_SPAN_S / 86_400:.0f}: one of its times "
            "is wrong, or its shards do not belong together"
        )
    return windows(rows, interval_s)


def warmup_files(source: str) -> list[Path]:
    """The files behind a path, pattern or folder, by name. Raises ConfigError where there is none, or a twin."""
    path = Path(source)
    if path.is_dir():
        files = [p for p in sorted(path.iterdir()) if p.name.endswith(ENDINGS)]
    elif path.is_file():
        files = [path]
    else:
        files = [Path(p) for p in sorted(glob.glob(source)) if p.endswith(ENDINGS)]
    if not files:
        raise ConfigError(
            f"{KEY}: {source!r} is no .jsonl, .jsonl.gz or .csv file, and no folder or pattern of .jsonl files"
        )
    if not files[0].name.endswith(ENDINGS):
        raise ConfigError(f"{KEY}: {source!r} does not end in {' or '.join(ENDINGS)}")
    names = [str(p).removesuffix(".gz") for p in files]
    if twins := sorted({n for n in names if names.count(n) > 1}):
        raise ConfigError(
            f"{KEY}: {twins[0]} is there plain and compressed: its requests would count twice. Remove one"
        )
    return files


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            yield from lines
    except (OSError, EOFError, zlib.error) as e:
        raise ConfigError(f"{KEY}: {path} cannot be read ({e}): check that it is whole") from e


def _read(where: str, raw: bytes) -> tuple[str, Row | None] | None:
    """Format and request of a line; None for an empty one, no request for an event that is none."""
    if not raw.strip():
        return None
    try:
        record = msgspec.json.decode(raw)
    except msgspec.DecodeError as e:
        raise ConfigError(f"{where}: {e}: repair or remove the line") from e
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: is no JSON object")
    if "timestamp" in record and "event" in record:
        raise ConfigError(f"{where}: has both `timestamp` and `event`: is it Mooncake or {TRACE}?")
    if "timestamp" in record:
        times = (record["timestamp"], record.get("input_length"), record.get("output_length"))
        return "a Mooncake trace", _row(where, ("timestamp", "input_length", "output_length"), times)
    event = record.get("event", record)
    if not isinstance(event, dict) or event.get("schema") != TRACE:
        raise ConfigError(
            f"{where}: is neither a Mooncake request (timestamp, input_length, output_length) nor {TRACE}"
        )
    if event.get("event_type") != REQUEST_END:
        return TRACE, None
    request = event.get("request", record.get("request"))
    if not isinstance(request, dict):
        raise ConfigError(f"{where}: a {REQUEST_END} event without `request`")
    replay = request.get("replay")
    isl = replay.get("input_length") if isinstance(replay, dict) else None
    values = (request.get("request_received_ms"), isl, request.get("output_tokens"))
    return TRACE, _row(where, ("request_received_ms", "replay.input_length", "output_tokens"), values)


def _row(where: str, names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    at, isl, osl = values
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < math.inf:
        raise ConfigError(f"{where}: {names[0]} is {at!r}, not milliseconds from zero on")
    for name, tokens in ((names[1], isl), (names[2], osl)):
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= MOST_TOKENS:
            raise ConfigError(f"{where}: {name} is {tokens!r}, not a number of tokens")
    return at / 1000.0, isl, osl
