"""Source: recorded FPMs and recorded metrics pages, with the times at which they were recorded. No network, no clock.

A capture of FPMs is a gzipped file of JSON lines `{"t": seconds, "subject": ..., "b64": envelope}`; a capture of pages
is a folder of files `NNN_<seconds since the epoch>.txt`, one per scrape of one frontend.
"""

import gzip
import re
import zlib
from base64 import b64decode
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from headrace.connectors.sources.fpm_packer import FpmPacker, Route
from headrace.connectors.sources.frontend_page import Reading, Selector, read_page
from headrace.connectors.sources.frontend_windows import FrontendWindows
from headrace.schemas.base import Seconds
from headrace.schemas.deadletter import UNKNOWN_DGD, DeadLetter, cut
from headrace.schemas.errors import ConfigError, RecordError
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.traffic import TrafficWindow

_PAGE = re.compile(r"^(\d+)_(\d+(?:\.\d+)?)\.txt$")


class _Line(msgspec.Struct, frozen=True):
    """One message of a capture: received at `t` (s)."""

    t: Seconds
    subject: str
    b64: str


_decode = msgspec.json.Decoder(_Line).decode


def fpm_batches(
    path: Path, routes: Iterable[Route], *, source: str = "replay", flush_s: float = 0.05
) -> Iterator[FpmBatch | DeadLetter]:
    """The batches that the live source would have made of a capture, oldest first, and dead letters for its bad lines.

    Batches are cut on a grid of `flush_s` seconds of recorded time. Raises ConfigError when the file cannot be opened
    or when none of its messages has a route.
    """
    packer = FpmPacker(routes, source=source)
    slot, at = None, 0.0
    for number, line in _lines(path):
        try:
            message = _decode(line)
            data = b64decode(message.b64, validate=True)
        except (msgspec.DecodeError, ValueError) as e:
            yield _bad_line(line, str(e), source, path, number, at)
            continue
        at = message.t
        if slot is not None and at // flush_s != slot:
            yield from packer.take()
        slot = at // flush_s
        letter = packer.add(message.subject, data, at)
        if letter is not None:
            yield msgspec.structs.replace(letter, stream=str(path.name), position=number)
    yield from packer.take()
    if packer.names_seen and packer.counters.unmapped == packer.counters.received:
        seen = ", ".join(f"{namespace}/{component}" for namespace, component in packer.names_seen)
        raise ConfigError(f"{path.name}: no message has a route; its namespaces and components are {seen}")


def traffic_windows(
    folder: Path, dgd: str, selector: Selector | None = None, *, source: str = "replay"
) -> Iterator[TrafficWindow]:
    """The windows that the live source would have made of a folder of recorded pages of one frontend."""
    windows = FrontendWindows(dgd, source, ["recorded"])
    for at, path in _pages(folder):
        window = windows.round(at, {"recorded": _reading(path, selector or Selector())})
        if window is not None:
            yield window


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines, from 1. A file that breaks off in the middle ends with its last whole line."""
    try:
        with gzip.open(path, "rb") as file:
            yield from enumerate(file, start=1)
    except EOFError:
        return
    except (OSError, zlib.error) as e:
        raise ConfigError(f"capture {path}: {e}. It must be a gzipped file of JSON lines") from e


def _bad_line(line: bytes, why: str, source: str, path: Path, number: int, at: float) -> DeadLetter:
    return DeadLetter(
        dgd=UNKNOWN_DGD,
        reason="undecodable",
        message=f"line {number} of a capture: {why}",
        reader=source,
        stream=path.name,
        position=number,
        at=at,
        data=cut(line),
        size=len(line),
    )


def _pages(folder: Path) -> list[tuple[float, Path]]:
    """The recorded pages by time (s). Raises ConfigError when the folder has none."""
    found = [(float(match[2]), path) for path in folder.glob("*.txt") if (match := _PAGE.match(path.name))]
    if not found:
        raise ConfigError(f"{folder} has no recorded pages: they are named NNN_<seconds since the epoch>.txt")
    return sorted(found)


def _reading(path: Path, selector: Selector) -> Reading | str:
    try:
        return read_page(path.read_bytes(), selector)
    except RecordError as e:
        return str(e)
