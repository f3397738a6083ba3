"""DeadLetter: bytes that could not be used, where they came from, and why."""

from collections.abc import Mapping

from headrace.schemas.base import Record, Seconds, Serial
from headrace.schemas.reasons import DeadLetterReasonName

UNKNOWN_DGD = "unknown/unknown"


class DeadLetter(Record, frozen=True, kw_only=True, tag="headrace.deadletter.v1"):
    """``dgd`` is `unknown/unknown` where the bytes do not tell. ``data`` is cut at 64 KiB; ``size`` is the whole."""

    reason: DeadLetterReasonName  # for filters
    message: str  # for people: the input, the rule that it broke
    reader: str  # who could not use it
    stream: str  # our stream, or the foreign subject or URL it came from
    position: Serial | None  # sequence or offset there; null where there is none
    at: Seconds  # when the reader met it, seconds since 1970, UTC
    data: bytes  # the first 64 KiB; base64 in JSON
    size: Serial  # bytes of the whole
    headers: dict[str, str] = {}  # as they came, the first 8 KiB of them
    item: Serial | None = None  # index inside a batch


KEPT_BYTES = 64 * 1024
KEPT_HEADER_BYTES = 8 * 1024


def cut(data: bytes) -> bytes:
    """The part of bad bytes that is kept."""
    return data[:KEPT_BYTES]


def cut_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are kept, each whole: a letter must fit where the bad message did."""
    kept: dict[str, str] = {}
    room = KEPT_HEADER_BYTES
    for name, value in headers.items():
        room -= len(name.encode()) + len(value.encode())
        if room < 0:
            break
        kept[name] = value
    return kept
