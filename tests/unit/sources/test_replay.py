"""Replay of captures: the batches and windows of then, and dead letters for what is broken in the file."""

import gzip
import json
from base64 import b64encode
from pathlib import Path

import pytest
from metrics_support import page

from headrace.connectors.sources.fpm_packer import Route
from headrace.connectors.sources.frontend_page import Selector
from headrace.connectors.sources.replay_fpm import fpm_batches, traffic_windows
from headrace.schemas.deadletter import DeadLetter
from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import TOPIC, Fpm, FpmEnvelope, encode_envelope, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch

DGD = "ml/llama"
ROUTES = [Route("dynamo", DGD)]


def line(t: float, sequence: int = 0, component: str = "backend", data: bytes | None = None) -> str:
    envelope = FpmEnvelope(5, sequence, round(t * 1000), TOPIC, encode_fpm(Fpm(worker_id="9", counter_id=sequence)))
    data = encode_envelope(envelope) if data is None else data
    subject = f"namespace.dynamo.component.{component}.endpoint.generate.{TOPIC}"
    return json.dumps({"t": t, "subject": subject, "headers": None, "b64": b64encode(data).decode()}) + "\n"


def capture(folder: Path, *lines: str) -> Path:
    path = folder / "fpm.jsonl.gz"
    path.write_bytes(gzip.compress("".join(lines).encode()))
    return path


def test_batches_carry_the_recorded_times(tmp_path: Path) -> None:
    path = capture(tmp_path, line(100.01, 0), line(100.02, 1), line(100.06, 2), line(103.0, 3))
    batches = list(fpm_batches(path, ROUTES))
    assert [b.received_at for b in batches if isinstance(b, FpmBatch)] == [100.02, 100.06, 103.0]
    assert [len(b.items) for b in batches if isinstance(b, FpmBatch)] == [2, 1, 1]


def test_the_same_capture_gives_the_same_batches(tmp_path: Path) -> None:
    path = capture(tmp_path, *(line(100 + n / 60, n) for n in range(50)))
    assert list(fpm_batches(path, ROUTES)) == list(fpm_batches(path, ROUTES))


BROKEN = {
    "no JSON": "not json\n",
    "no base64": '{"t": 1.0, "subject": "s", "b64": "***"}\n',
    "no time": '{"subject": "s", "b64": ""}\n',
    "a time that is none": '{"t": -1.0, "subject": "s", "b64": ""}\n',
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_line_is_a_dead_letter_with_its_number(tmp_path: Path, broken: str) -> None:
    path = capture(tmp_path, line(100.0, 0), broken, line(100.0, 1))
    letters = [found for found in fpm_batches(path, ROUTES) if isinstance(found, DeadLetter)]
    batches = [found for found in fpm_batches(path, ROUTES) if isinstance(found, FpmBatch)]
    assert [(letter.position, letter.stream, letter.reason) for letter in letters] == [
        (2, "fpm.jsonl.gz", "undecodable")
    ]
    assert sum(len(batch.items) for batch in batches) == 2


def test_a_recorded_message_that_is_no_envelope_is_a_dead_letter_with_its_line(tmp_path: Path) -> None:
    path = capture(tmp_path, line(100.0, 0), line(100.0, data=b"\xc1"))
    [letter] = [found for found in fpm_batches(path, ROUTES) if isinstance(found, DeadLetter)]
    assert (letter.position, letter.data, letter.dgd) == (2, b"\xc1", DGD)


def test_a_capture_that_breaks_off_ends_with_its_last_whole_line(tmp_path: Path) -> None:
    path = capture(tmp_path, *(line(100 + n / 60, n) for n in range(400)))
    path.write_bytes(path.read_bytes()[:-500])
    found = list(fpm_batches(path, ROUTES))
    assert 0 < sum(len(batch.items) for batch in found if isinstance(batch, FpmBatch)) < 400


def test_a_capture_in_which_nothing_has_a_route_is_refused_with_the_names_in_it(tmp_path: Path) -> None:
    path = capture(tmp_path, line(100.0, component="vllmworker"))
    with pytest.raises(ConfigError, match="dynamo/vllmworker"):
        list(fpm_batches(path, ROUTES))


def test_a_file_that_is_no_capture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("plain")
    with pytest.raises(ConfigError, match="gzipped file of JSON lines"):
        list(fpm_batches(tmp_path / "x", ROUTES))


def test_a_folder_of_pages_gives_a_window_between_each_two(tmp_path: Path) -> None:
    for n, started in enumerate((5, 9, 9, 20)):
        (tmp_path / f"{n:03}_{1000 + 5 * n}.815.txt").write_bytes(page(model="llama", started=started))
    windows = list(traffic_windows(tmp_path, DGD, Selector(model="llama")))
    assert [w.requests for w in windows] == [4, 0, 11]
    assert (windows[0].start, windows[-1].end) == (1000.815, 1015.815)


def test_a_recorded_page_that_cannot_be_read_makes_an_unknown_window(tmp_path: Path) -> None:
    for n, body in enumerate((page(started=5), b"<html>\n", page(started=9))):
        (tmp_path / f"{n:03}_{1000 + 5 * n}.txt").write_bytes(body)
    unknown, spanning = traffic_windows(tmp_path, DGD)
    assert (unknown.requests, spanning.requests, spanning.start) == (None, 4, 1000.0)


def test_a_folder_without_pages_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match="NNN_<seconds"):
        list(traffic_windows(tmp_path, DGD))
