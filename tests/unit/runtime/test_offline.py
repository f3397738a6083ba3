"""Recorded and simulated time: what is due when, and what a recording may be."""

import gzip
import json
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import world

from headrace.schemas.base import Record
from headrace.schemas.config import planner_config
from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import TOPIC, FpmEnvelope, encode_envelope, encode_fpm
from headrace.schemas.tick_report import TickReport
from headrace.streams.planner import Planner
from headrace.streams.runtime.offline import drive
from headrace.streams.runtime.replay import replay
from headrace.streams.settings import settings

START = 1_700_000_000.0
SUBJECT = f"namespace.dynamo.component.backend.endpoint.generate.{TOPIC}"


def planner() -> Planner:
    planner = Planner(planner_config({"load_adjustment_interval_seconds": 5}), world.DGD, start=START)
    planner.begin_epoch()
    return planner


def times(said: Iterable[tuple[float, Record]]) -> list[float]:
    return [at - START for at, record in said if isinstance(record, TickReport)]


def test_ticks_run_when_they_are_due_up_to_the_last_record_and_on_to_the_end() -> None:
    record = world.window(START, START + 5, 10)
    assert times(drive(planner(), [(START + 12, record)])) == [5.0, 10.0]
    assert times(drive(planner(), [(START + 12, record)], until=START + 20)) == [5.0, 10.0, 15.0, 20.0]


def test_a_tick_comes_before_a_record_of_its_own_time() -> None:
    said = list(drive(planner(), [(START + 5, world.window(START, START + 5, 10))], until=START + 10))
    loads = [record.load for _, record in said if isinstance(record, TickReport)]
    assert loads[0] == {}
    assert loads[1]["requests_per_s"] == 2.0


def test_dead_letters_come_out_with_the_time_of_their_record() -> None:
    (letter,) = list(drive(planner(), [(START + 1, world.raw_batch("decode", START, b"\xc1"))]))
    assert letter[0] == START + 1


def recording(folder: Path, lines: Iterable[tuple[float, float]]) -> dict[str, Any]:
    """A configuration that replays FPMs received at and published at these seconds."""
    with gzip.open(folder / "fpm.jsonl.gz", "wt") as file:
        for n, (received_at, published_at) in enumerate(lines, start=1):
            envelope = FpmEnvelope(7, n, int(1000 * published_at), TOPIC, encode_fpm(world.fpm("11", n)))
            line = {"t": received_at, "subject": SUBJECT, "b64": b64encode(encode_envelope(envelope)).decode()}
            file.write(json.dumps(line) + "\n")
    sources = {"dynamo_fpm": {"namespace": "dynamo"}, "replay": {"fpm": str(folder / "fpm.jsonl.gz")}}
    return {"dgd": world.DGD, "sources": sources}


def test_a_recording_is_planned_on_its_own_time_whatever_the_engines_clocks_say(tmp_path: Path) -> None:
    years = 30 * 365 * 86_400.0
    raw = recording(tmp_path, [(START, START), (START + 6, START + years), (START + 12, 1.0), (START + 12, START + 12)])
    said = list(replay(settings(raw)))
    assert times(said) == [5.0, 10.0]
    last = said[-1][1]
    assert isinstance(last, TickReport)
    assert last.counters["fpm_seen"] == 2


def test_a_recording_with_a_wrong_time_in_it_is_refused(tmp_path: Path) -> None:
    raw = recording(tmp_path, [(START, START), (1e12, START)])
    with pytest.raises(ConfigError, match="one of their times is wrong"):
        list(replay(settings(raw)))


def test_a_recording_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the recordings hold nothing"):
        list(replay(settings(recording(tmp_path, []))))
