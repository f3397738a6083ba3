"""Warm-up traces: two formats, any shards, all or nothing."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.errors import ConfigError
from headrace.streams.runtime.warmup import warmup_files, warmup_windows

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of JSON lines; other strings as they are."""

    def made(name: str, *records: Any) -> Path:
        text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return made


def mooncake(at_ms: float, isl: int = 100, osl: int = 10, **more: Any) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": isl, "output_length": osl, **more}


def dynamo(at_ms: float, event_type: str = "request_end", **request: Any) -> dict[str, Any]:
    told = {"request_received_ms": at_ms, "output_tokens": 10, "replay": {"input_length": 100}} | request
    return {"event": {"schema": "dynamo.request.trace.v1", "event_type": event_type}, "request": told}


def counts(source: Path | str) -> list[int]:
    return [w.requests for w in warmup_windows(str(source), 60.0)]


def test_empty_windows_in_the_middle_are_kept(write: Write):  # case T10, dynamo#10670
    path = write("t.jsonl", *(mooncake(ms) for ms in (0, 1, 60_000, 61_000, 62_000, *[240_000] * 5)))
    assert counts(path) == [2, 3, 0, 0, 5]


def test_both_formats_give_the_same_windows(write: Write):
    times = (1e12 + 61_000, 1e12, 1e12 + 59_000)
    assert counts(write("a.jsonl", *map(mooncake, times))) == [2, 1]
    assert counts(write("b.jsonl", *map(dynamo, times))) == [2, 1]


def test_events_that_end_no_request_are_passed_over(write: Write):
    assert counts(write("t.jsonl", dynamo(0, "request_start"), dynamo(0))) == [1]


def test_shards_may_come_in_any_order_packed_or_not(write: Write, tmp_path: Path):
    write("2.jsonl", mooncake(0), mooncake(1))
    write("1.jsonl.gz", mooncake(130_000), mooncake(61_000))
    (tmp_path / "README.md").write_text("not a trace")
    assert counts(tmp_path) == [2, 1, 1]
    assert counts(str(tmp_path / "*.jsonl*")) == [2, 1, 1]


def test_a_file_that_is_there_plain_and_packed_would_count_twice(write: Write, tmp_path: Path):
    write("t.jsonl", mooncake(0))
    write("t.jsonl.gz", mooncake(0))
    with pytest.raises(ConfigError, match="plain and compressed"):
        warmup_files(str(tmp_path))


def test_two_formats_are_refused_wherever_they_meet(write: Write, tmp_path: Path):  # dynamo#11842
    write("1.jsonl", mooncake(0))
    write("2.jsonl", dynamo(5))
    with pytest.raises(ConfigError, match=r"2\.jsonl:1: is dynamo\.request\.trace\.v1, but .*1\.jsonl:1 is not"):
        counts(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "repair or remove"),
        ("[1]", "no JSON object"),
        ({"time": 3}, "neither a Mooncake request"),
        (mooncake(5, event={}), "both `timestamp` and `event`"),
        (mooncake(-1), "timestamp is -1"),
        (mooncake("5"), "timestamp is '5'"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "repair or remove"),
        (mooncake(5, isl=1.5), r"input_length is 1\.5"),
        (mooncake(5, osl=None), "output_length is None"),
        (dynamo(5, replay=None), "replay.input_length is None"),
        (dynamo(5, output_tokens=True), "output_tokens is True"),
        (dynamo(5) | {"request": None}, "without `request`"),
        ({"event": {"schema": "dynamo.request.trace.v2"}}, "neither"),
    ],
)
def test_one_bad_line_refuses_all_and_is_named(write: Write, line: Any, said: str):  # dynamo#12211
    good = dynamo(0) if isinstance(line, dict) and "event" in line and "timestamp" not in line else mooncake(0)
    path = write("t.jsonl", good, "", line)
    with pytest.raises(ConfigError, match=rf"{path.name}:3: .*{said}"):
        counts(path)


def test_a_file_that_is_cut_is_refused(write: Write):
    path = write("t.jsonl.gz", *[mooncake(n) for n in range(1000)])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="check that it is whole"):
        counts(path)


@pytest.mark.parametrize("source", ["nowhere", "*.jsonl", "t.csv"])
def test_what_is_no_trace_is_refused(write: Write, tmp_path: Path, source: str):
    write("t.csv", "a,b")
    with pytest.raises(ConfigError, match="jsonl"):
        counts(tmp_path / source)


def test_an_empty_trace_is_refused(write: Write):
    with pytest.raises(ConfigError, match="holds no request"):
        counts(write("t.jsonl", ""))
