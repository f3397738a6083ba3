"""What real engines said: FPMs recorded from a running Dynamo stack. Skipped where the captures are absent."""

import base64
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.models.perf.engine import EngineModel, Kind
from headrace.schemas.fpm import decode_envelope, decode_fpm

pytestmark = pytest.mark.shared


def rows_of(capture: Path, component: str) -> np.ndarray:
    """Columns for `learn`, shape (5, n), of one component's engines."""
    rows = []
    with gzip.open(capture, "rt") as lines:
        for line in lines:
            message = json.loads(line)
            if f".component.{component}." not in message["subject"]:
                continue
            fpm = decode_fpm(decode_envelope(base64.b64decode(message["b64"])).payload)
            s = fpm.scheduled_requests
            work = (s.num_prefill_requests, s.sum_prefill_tokens, s.num_decode_requests, s.sum_decode_kv_tokens)
            rows.append((*work, fpm.wall_time))
    return np.array(rows, dtype=float).T


def median_error(model: EngineModel, rows: np.ndarray, kind: Kind) -> float:
    """Median relative error over the iterations of a kind."""
    prefills, decodes = rows[1] > 0, rows[2] > 0
    of = {Kind.PREFILL: prefills & ~decodes, Kind.DECODE: decodes & ~prefills, Kind.MIXED: prefills & decodes}[kind]
    line = model.line(kind)
    _, tokens, requests, kv, wall = rows[:, of]
    return float(np.median(np.abs(line.at_each(tokens, requests, kv) / wall - 1)))


@pytest.mark.parametrize(
    ("capture", "component", "kind"),
    [
        ("disagg_fpm.jsonl.gz", "prefill", Kind.PREFILL),
        ("disagg_fpm.jsonl.gz", "backend", Kind.DECODE),
        ("agg_fpm.jsonl.gz", "backend", Kind.DECODE),
        ("agg_fpm.jsonl.gz", "backend", Kind.MIXED),
        ("agg_fpm.jsonl.gz", "backend", Kind.PREFILL),
    ],
)
def test_a_recorded_engine_is_learned(shared, capture, component, kind):
    rows = rows_of(shared / "data" / "captures" / capture, component)
    model = EngineModel()
    model.learn(*rows)
    assert model.ready(kind)
    # the recorded engines are Dynamo's mocker, whose times bend: ordinary least squares on all rows reaches 0.10
    assert median_error(model, rows, kind) < 0.15
