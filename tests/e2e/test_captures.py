"""Recordings of a real Dynamo 1.4.2 through the whole pipeline: every FPM decoded, none lost, twice the same bytes."""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from captures import CAPTURES, messages, needs_captures
from nats_support import nats_server

from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.base import Role
from headrace.schemas.codec import decode
from headrace.schemas.decision import Decision
from headrace.schemas.streams import DEADLETTERS, STREAMS, TICKS
from headrace.schemas.tick_report import TickReport
from headrace.streams.live import core_client
from headrace.streams.runtime.clock import ScaledClock
from headrace.streams.runtime.service import serve
from headrace.streams.settings import settings

DGD = "ml/dynamo"
KINDS: dict[str, dict[str, Any]] = {
    "disagg": {"mode": "disagg", "ttft_ms": 80, "itl_ms": 20},
    "agg": {"mode": "agg", "ttft_ms": 300, "itl_ms": 40},
}
ROLES: dict[str, list[Role]] = {"disagg": ["prefill", "decode"], "agg": ["agg"]}
SPEED = 16.0


def configuration(kind: str) -> dict[str, Any]:
    return {
        "dgd": DGD,
        "optimization_target": "sla",
        "capacity_policy": "reference",
        "enable_load_scaling": True,
        "throughput_adjustment_interval_seconds": 20,
        "max_gpu_budget": -1,
        "sources": {"dynamo_fpm": {"namespace": "dynamo"}},
        **KINDS[kind],
    }


def replayed(kind: str, folder: Path) -> bytes:
    """What `headrace run` prints for a recording."""
    raw = configuration(kind)
    raw["sources"]["replay"] = {
        "fpm": str(CAPTURES / f"{kind}_fpm.jsonl.gz"),
        "metrics": str(CAPTURES / f"{kind}_metrics"),
    }
    path = folder / f"{kind}.yaml"
    path.write_text(yaml.safe_dump(raw))
    run = subprocess.run([sys.executable, "-m", "headrace", "run", "-c", path], capture_output=True, check=True)
    return run.stdout


@needs_captures
@pytest.mark.parametrize("kind", KINDS)
def test_a_recording_replayed_twice_gives_the_same_bytes_and_loses_no_fpm(kind: str, tmp_path: Path) -> None:
    first, second = replayed(kind, tmp_path), replayed(kind, tmp_path)
    assert first == second
    lines = first.splitlines()
    schemas = Counter(msgspec.json.decode(line)["schema"] for line in lines)
    assert schemas["headrace.deadletter.v1"] == 0
    report = next(decode(TICKS, line) for line in reversed(lines) if b'"headrace.tick_report.v1"' in line)
    assert isinstance(report, TickReport)
    recorded = list(messages(kind))
    before_last_tick = sum(t <= report.at for t, _, _ in recorded)
    assert before_last_tick <= report.counters["fpm_seen"] <= len(recorded)
    assert report.counters["fpm_bad"] == report.counters["fpm_duplicate"] == report.counters["fpm_clock_skew"] == 0
    for role in ROLES[kind]:
        assert report.roles[role].estimated["fit_samples"] > 50  # the regression is ready
        assert report.roles[role].estimated["fit_intercept_s"] > 0


@needs_captures
def test_the_overloaded_aggregated_engines_of_the_recording_are_scaled_up_and_the_idle_ones_of_the_other_are_not(
    tmp_path: Path,
) -> None:
    for kind in KINDS:
        decisions = [
            msgspec.json.decode(line, type=Decision)
            for line in replayed(kind, tmp_path).splitlines()
            if b'"headrace.decision.v1"' in line
        ]
        grew = any(d.targets[role] > d.previous[role] for d in decisions for role in d.targets)
        shrank_to_nothing = any(n < 1 for d in decisions for n in d.targets.values())
        assert grew == (kind == "agg"), decisions
        assert not shrank_to_nothing


@needs_captures
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_recording_played_on_dynamos_subjects_arrives_whole(kind: str, tmp_path: Path) -> None:
    recorded = list(messages(kind))
    wall, start = time.time() + 1.0, recorded[0][0] - 1.0
    clock = ScaledClock(SPEED, start, wall)
    reports: list[TickReport] = []
    with nats_server(tmp_path) as server:
        bus = NatsBus(server.url)
        await bus.open()
        await bus.ensure(STREAMS.values())
        records = RecordBus(bus, "planner", clock.now)
        stop = asyncio.Event()
        running = asyncio.create_task(
            serve(
                settings(configuration(kind)),
                records,
                stop,
                clock=clock,
                on_tick=lambda out: reports.extend(r for r in out if isinstance(r, TickReport)),
            )
        )
        client = await core_client(records)
        await clock.sleep_until(start, stop)
        for at, subject, envelope in recorded:
            if at > clock.now():
                await client.flush()
                await clock.sleep_until(at, stop)
            await client.publish(subject, envelope)
        await client.flush()
        await clock.sleep_until(recorded[-1][0] + 12.0, stop)
        stop.set()
        await running
        letters = await bus.last(DEADLETTERS, DGD)
        await client.close()
        await bus.close()
    counters = reports[-1].counters
    print(f"\n{kind}: {len(recorded)} published, {counters['fpm_seen']} counted, {counters['fpm_duplicate']} repeated")
    assert letters is None
    assert counters["fpm_seen"] == len(recorded)
    assert counters["fpm_bad"] == counters["fpm_duplicate"] == counters["fpm_clock_skew"] == 0
    assert all(reports[-1].roles[role].estimated["fit_samples"] > 50 for role in ROLES[kind])
