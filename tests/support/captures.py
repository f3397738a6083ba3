"""The recordings of a real Dynamo stack; they are not part of the repository."""

import gzip
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

CAPTURES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "captures"

needs_captures = pytest.mark.skipif(not CAPTURES.is_dir(), reason="shared: the recorded captures are not here")


class Line(msgspec.Struct):
    t: float
    subject: str
    b64: str


def messages(name: str) -> Iterator[tuple[float, str, bytes]]:
    """(received at, subject, envelope) of every message of a capture."""
    with gzip.open(CAPTURES / f"{name}_fpm.jsonl.gz", "rb") as lines:
        for line in lines:
            m = msgspec.json.decode(line, type=Line)
            yield m.t, m.subject, b64decode(m.b64)
