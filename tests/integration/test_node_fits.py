"""Forecasters in a planner that runs: fits come over the log, no tick waits for one, a warm-up happens once."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import world
from fit_jobs import Job
from fits_at_once import FitsAtOnce
from node_support import DGD, Lab, Running, lab_on

from headrace.models.forecast.fitting import FitJob
from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.config import planner_config
from headrace.schemas.forecast_fit import ForecastFit
from headrace.schemas.prediction import Prediction
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import FITS, INVENTORY, TRAFFIC
from headrace.schemas.tick_report import TickReport
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.planner import Planner
from headrace.streams.runtime.fits import Fits
from headrace.streams.runtime.node import NodeOptions, PlannerNode
from headrace.streams.runtime.recovery import _snapshot

INTERVAL_S = 20.0
CONFIG: dict[str, Any] = {
    "optimization_target": "sla",
    "load_predictor": "arima",
    "throughput_adjustment_interval_seconds": INTERVAL_S,
    "max_gpu_budget": -1,
}


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with lab_on(None) as lab:
        yield lab


async def start(lab: Lab, fits: Fits, **config: Any) -> tuple[Running, list[PlannerState]]:
    """A node with these fits, and the snapshots that it writes."""
    saved: list[PlannerState] = []

    async def keep(record: Record) -> None:
        if isinstance(record, PlannerState):
            saved.append(record)

    records = await lab.bus()
    records.before = keep
    said: list[list[Record]] = []
    options = NodeOptions(on_tick=lambda said_now: said.append(list(said_now)), catch_up_s=4.0, fits=fits)
    node = PlannerNode(records, planner_config(CONFIG | config), DGD, lab.clock, options)
    stop = asyncio.Event()
    running = Running(node, lab.clock, asyncio.create_task(node.run(stop)), stop, said)
    lab.nodes.append(running)
    return await running.started(), saved


async def interval(lab: Lab, node: Running, requests: int) -> TickReport:
    """An interval of traffic, and the tick at its end."""
    at = lab.clock.now()
    await lab.fleet()
    window = msgspec.structs.replace(world.window(at, at + INTERVAL_S, requests), window_id=f"{at}")
    await node.took(TRAFFIC, await lab.records.publish(window))
    return await node.tick(INTERVAL_S)


def rate(n: int) -> int:
    return 600 + 120 * (n % 3) + 7 * n


async def took_fits(lab: Lab, node: Running) -> None:
    last = await lab.records.bus.last(FITS, DGD)
    if last is not None:
        await node.took(FITS, last.position)


async def test_a_fit_goes_over_the_log_and_is_used(lab: Lab) -> None:
    node, _ = await start(lab, FitsAtOnce())
    for n in range(12):
        report = await interval(lab, node, rate(n))
        await took_fits(lab, node)
    logged = await lab.log(FITS)
    assert {(fit.series, fit.kind) for fit in logged} == {("rate", "arima")}
    assert report.counters["fit_used"] >= 1
    assert report.forecast["requests_per_s"] == pytest.approx(0.5 * rate(11) / INTERVAL_S)
    assert (await lab.reports())[-1].positions["fits"] > 0
    await node.stopped()


async def test_a_replay_of_the_log_takes_the_recorded_fits_and_says_the_same(lab: Lab) -> None:
    node, saved = await start(lab, FitsAtOnce())
    for n in range(12):
        await interval(lab, node, rate(n))
        await took_fits(lab, node)
    inputs = [(stream, await lab.log(stream)) for stream in (TRAFFIC, INVENTORY, FITS)]
    await node.stopped()
    by_time = sorted(
        (record for stream, records in inputs if stream is not INVENTORY for record in records), key=_came_at
    )
    for before, records in zip(saved[7:12], node.said[7:], strict=False):
        (report,) = (r for r in records if isinstance(r, TickReport))
        again = Planner.restore(_snapshot(before))
        assert not again.forecasts.inline
        for record in by_time:
            if before.taken_at <= _came_at(record) < report.at + isinstance(record, TrafficWindow):
                again.handle(record, report.at)
        foretold = [r for r in again.tick(report.at) if isinstance(r, Prediction)]
        assert [encode(r) for r in foretold] == [encode(r) for r in records if isinstance(r, Prediction)]


def _came_at(record: Record) -> float:
    return record.made_at if isinstance(record, ForecastFit) else msgspec.to_builtins(record)["end"]


class Hanging(Fits):
    """Workers whose fits never end."""

    def submit(self, owner: str, series: str, jobs: Iterable[FitJob]) -> int:
        return super().submit(owner, series, [Job(job.at, job.kind, seconds=3600) for job in jobs])


async def test_ticks_go_on_while_a_fit_hangs_and_the_end_does_not_wait_for_it(lab: Lab) -> None:
    fits = Hanging(1)
    node, _ = await start(lab, fits)
    for n in range(10):
        report = await interval(lab, node, rate(n))
        assert report.at == report.due_at
        assert report.forecast["requests_per_s"] == pytest.approx(
            rate(n) / INTERVAL_S
        )  # the last value, until there is a fit
    assert fits.under_way == 1
    await node.stopped()
    fits.close()
    assert fits.processes == []


async def test_a_fit_that_nobody_can_use_is_harmless_and_counted(lab: Lab) -> None:
    node, _ = await start(lab, FitsAtOnce())
    for n in range(8):
        await interval(lab, node, rate(n))
    await took_fits(lab, node)
    good = (await lab.log(FITS))[-1]
    strange = [
        {},  # a repeat
        {"at": 3},
        {"options": "prophet, 180 s"},
        {"series": "wishes"},
    ]
    for n, changes in enumerate(strange):
        fit = msgspec.structs.replace(good, fit_id=f"strange {n}", **changes)
        await node.took(FITS, await lab.records.publish(fit))
    bad = msgspec.structs.replace(good, fit_id="bad", at=8, newest=rate(7) / INTERVAL_S, values={"order": 7})
    position = await lab.records.publish(bad)
    await node.took(FITS, position)
    report = await interval(lab, node, rate(8))
    assert report.counters["fit_unused"] == len(strange)
    assert [(le.stream, le.position, le.reason) for le in await lab.letters()] == [("fits", position, "invalid")]
    await node.stopped()


# -- warm-up -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten intervals with twenty requests each."""
    path = tmp_path / "trace.jsonl"
    times = [1000 * INTERVAL_S * n + ms for n in range(10) for ms in range(20)]
    rows = [{"timestamp": ms, "input_length": 500, "output_length": 50} for ms in times]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


async def test_a_node_warms_up_once_in_the_life_of_its_dgd(lab: Lab, trace: Path) -> None:
    config = {"load_predictor": "kalman", "load_predictor_warmup_trace": str(trace)}
    node, _ = await start(lab, FitsAtOnce(), **config)
    assert node.node.planner.forecasts.forecast("rate") == pytest.approx(1.0)
    assert node.node.planner.forecasts.warmed_by == str(trace)
    await interval(lab, node, 1800)
    learned = node.node.planner.forecasts.to_state()
    await node.stopped()
    await asyncio.to_thread(trace.unlink)
    lab.clock.move(lab.clock.at + INTERVAL_S)
    again, _ = await start(lab, FitsAtOnce(), **config)
    assert again.node.planner.forecasts.to_state()["rate"] == learned["rate"]
    assert not any("begin with nothing" in note for report in again.reports for note in report.notes)
    await again.stopped()


@pytest.fixture(params=["missing", "bad line"])
def bad_trace(request: pytest.FixtureRequest, trace: Path) -> Path:
    if request.param == "missing":
        trace.unlink()
    else:
        trace.write_text(trace.read_text() + "\noops")
    return trace


async def test_a_trace_that_cannot_be_read_is_said_and_planned_without(lab: Lab, bad_trace: Path) -> None:
    node, _ = await start(lab, FitsAtOnce(), load_predictor="kalman", load_predictor_warmup_trace=str(bad_trace))
    (note,) = (n for n in node.reports[0].notes if "begin with nothing" in n)
    assert str(bad_trace) in note
    assert node.node.planner.forecasts.empty
    await node.stopped()
