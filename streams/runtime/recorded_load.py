"""Request rates from recorded files: for judging forecasters, and for teaching them."""

import csv
import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headrace.connectors.simulator.traces import load_trace
from headrace.models.forecast.windows import windows
from headrace.schemas.errors import ConfigError

RATE_COLUMNS = ["window_start_s", "requests_per_s"]
TRACE_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class Series:
    """Requests per second in windows of `interval_s`."""

    name: str
    interval_s: float
    values: tuple[float, ...]


def read_series(path: str | Path, interval_s: float | None = None) -> Series:
    """The rates in a file, or those of a trace's arrivals. Raises ConfigError naming the file, the line, the remedy.

    The last window of a trace is left out: the trace ends within it.
    """
    path = Path(path)
    if is_rates(path):
        return _joined(path, *read_rates(path), interval_s)
    trace = load_trace(path)
    interval_s = interval_s or TRACE_INTERVAL_S
    found = windows(trace.rows(), interval_s)[:-1]
    if not found:
        raise ConfigError(f"{path}: ends within its first window of {interval_s:g} s: give a shorter --interval")
    return Series(trace.name, interval_s, tuple(w.requests / interval_s for w in found))


def _open_lines(path: Path) -> Iterator[str]:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8", newline="") as packed:
                yield from packed
        else:
            with path.open(encoding="utf-8", newline="") as lines:
                yield from lines
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as e:
        raise ConfigError(f"{path}: cannot be read as text ({e}): check that it is whole") from e


def is_rates(path: Path) -> bool:
    """Is it a CSV of rates? Raises ConfigError where it cannot be read."""
    if not path.name.removesuffix(".gz").endswith(".csv"):
        return False
    return next(csv.reader(_open_lines(path)), None) == RATE_COLUMNS


def read_rates(path: Path) -> tuple[float, list[float]]:
    """Seconds of a window, and the rates. Raises ConfigError naming the file, the line, the remedy."""
    starts, values = [], []
    rows = csv.reader(_open_lines(path))
    next(rows)
    for line, fields in enumerate(rows, start=2):
        try:
            start, value = map(float, fields)
        except ValueError:
            raise ConfigError(f"{path}:{line}: {fields} are not two numbers: repair or remove the line") from None
        if not (math.isfinite(start) and 0 <= value < math.inf):
            raise ConfigError(f"{path}:{line}: a rate is a finite number >= 0, not {fields[1]}: repair the line")
        starts.append(start)
        values.append(value)
    if len(starts) < 2:
        raise ConfigError(f"{path}: {len(starts)} windows: at least 2 are needed")
    own = starts[1] - starts[0]
    for line, (before, start) in enumerate(pairwise(starts), start=3):
        if own <= 0 or abs(start - before - own) > 1e-6 * own:
            raise ConfigError(f"{path}:{line}: begins {start - before:g} s after the line before, not {own:g} s")
    return own, values


def _joined(path: Path, own: float, values: list[float], interval_s: float | None) -> Series:
    """The rates in windows of `interval_s`, a multiple of their own."""
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    times = round((interval_s or own) / own)
    if times < 1 or abs(times * own - (interval_s or own)) > 1e-6 * own:
        raise ConfigError(f"{path}: its windows are {own:g} s: --interval ({interval_s:g}) must be a multiple of that")
    whole = range(0, len(values) - times + 1, times)
    return Series(name, times * own, tuple(sum(values[n : n + times]) / times for n in whole))
