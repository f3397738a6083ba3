"""What is known of engines before they serve, from a configuration to the stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bus_support import eventually, kept, memory_records

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.memory import MemoryBroker
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.profiles.files import DECODE_FILES, PREFILL_FILES
from headrace.schemas.config import PlannerConfig, planner_config
from headrace.schemas.engine_profiles import EngineProfiles, Source
from headrace.schemas.streams import PROFILES, TICKS
from headrace.schemas.tick_report import TickReport
from headrace.streams.runtime.clock import VirtualClock
from headrace.streams.runtime.profiles import ProfilePublisher, loaded, profiles_known, profiles_of
from headrace.streams.runtime.service import serve
from headrace.streams.settings import settings

DGD = "default/main"
AIC = {"hf_id": "nobody/nothing", "system": "none", "backend": "vllm"}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A directory with the results of a sweep, in the reference's keys."""
    prefill = {"prefill_isl": [100, 1000, 4000], "prefill_ttft": [12, 30, 90], "prefill_thpt_per_gpu": [1, 2, 3]}
    decode = {
        "x_kv_usage": [0.01, 0.1, 0.5],
        "y_context_length": [1000, 1000, 1000],
        "z_itl": [5.2, 6.5, 12.5],
        "z_thpt_per_gpu": [1, 2, 3],
        "max_kv_tokens": 100_000,
    }
    (tmp_path / PREFILL_FILES[1]).write_text(json.dumps(prefill))
    (tmp_path / DECODE_FILES[1]).write_text(json.dumps(decode))
    return tmp_path


def benchmark(path: Path, point_type: str, points: int) -> Path:
    """An answer of `get_perf_metrics` with iterations of one type of point."""
    work = {"num_prefill_requests": 1, "sum_prefill_tokens": 100}
    if point_type == "decode":
        work = {"num_decode_requests": 1, "sum_decode_kv_tokens": 100}
    results = [
        {"point": {"point_type": point_type}, "fpms": [{"wall_time": 0.01 * (i + 1), "scheduled_requests": work}]}
        for i in range(points)
    ]
    path.write_text(json.dumps({"results": results}))
    return path


def config(**keys: object) -> PlannerConfig:
    return planner_config({"optimization_target": "sla"} | keys)


def test_without_any_source_speed_is_learned_live() -> None:
    found = profiles_of(config())
    assert {role: f.source for role, f in found.items()} == {"prefill": Source.LIVE, "decode": Source.LIVE}
    assert profiles_known(config(), DGD, 0.0) is None


def test_a_directory_of_a_sweep_is_read(sweep: Path) -> None:
    found = profiles_known(config(profile_results_dir=str(sweep)), DGD, 7.0)
    assert found is not None
    assert (found.at, {f.source for f in found.roles.values()}) == (7.0, {Source.FILES})
    assert found.roles["prefill"].not_used[Source.BENCHMARK] == "not configured"


def test_the_engines_own_benchmark_wins_for_the_roles_that_have_one(sweep: Path, tmp_path: Path) -> None:
    path = benchmark(tmp_path / "decode.json", "decode", 4)
    found = profiles_of(config(profile_results_dir=str(sweep), benchmark_files={"decode": str(path)}))
    assert {role: f.source for role, f in found.items()} == {"prefill": Source.FILES, "decode": Source.BENCHMARK}
    assert len(found["decode"].profile.fpms) == 4
    assert found["decode"].not_used[Source.FILES] == "get_perf_metrics came first"


def test_what_a_source_lacks_or_refuses_is_said_and_the_next_one_is_asked(sweep: Path, tmp_path: Path) -> None:
    few = benchmark(tmp_path / "few.json", "prefill", 2)
    files = {"prefill": str(few), "decode": str(tmp_path / "nowhere.json")}
    found = profiles_of(config(profile_results_dir=str(sweep), benchmark_files=files, aic_interpolation=AIC))
    assert {f.source for f in found.values()} == {Source.FILES}
    assert "at least 3 are needed" in found["prefill"].not_used[Source.BENCHMARK]
    assert "cannot be read" in found["decode"].not_used[Source.BENCHMARK]
    assert "AI Configurator" in found["decode"].not_used[Source.AIC]


def test_an_answer_that_is_no_answer_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[]")
    found = profiles_of(config(benchmark_files={"decode": str(wrong)}))
    assert "no list `results`" in found["decode"].not_used[Source.BENCHMARK]


@asynccontextmanager
async def publishing(records: RecordBus, at: float = 100.0, **keys: object) -> AsyncIterator[None]:
    """While a publisher runs."""
    stop = asyncio.Event()
    task = asyncio.create_task(ProfilePublisher(records, DGD, config(**keys), VirtualClock(at)).run(stop))
    try:
        yield
        assert not task.done(), "it ends with the others, not before them"
    finally:
        stop.set()
        await task


async def settled(records: RecordBus, messages: int) -> list[EngineProfiles]:
    """The records on the stream once that many were ever published."""
    newest = await records.bus.last(PROFILES, DGD)
    async with asyncio.timeout(20):
        while (newest.position if newest else 0) < messages:
            await asyncio.sleep(0.01)
            newest = await records.bus.last(PROFILES, DGD)
    await asyncio.sleep(0.05)  # one more would come now
    return [r for r in await kept(records, PROFILES) if isinstance(r, EngineProfiles)]


async def test_a_profile_is_published_once_and_not_again_at_the_next_start(sweep: Path) -> None:
    records = await memory_records(lambda: 0.0)
    for _ in range(2):
        async with publishing(records, profile_results_dir=str(sweep)):
            (found,) = await settled(records, 1)
    last = await records.bus.last(PROFILES, DGD)
    assert last is not None
    assert (found.at, last.position) == (100.0, 1)


async def test_a_profile_that_has_changed_is_published_anew(sweep: Path) -> None:
    records = await memory_records(lambda: 0.0)
    async with publishing(records, profile_results_dir=str(sweep)):
        await settled(records, 1)
    text = (sweep / PREFILL_FILES[1]).read_text()
    (sweep / PREFILL_FILES[1]).write_text(text.replace("90", "95"))
    async with publishing(records, 200.0, profile_results_dir=str(sweep)):
        (found,) = await settled(records, 2)
    assert found.roles["prefill"].profile.prefill is not None
    assert found.roles["prefill"].profile.prefill.ttft_s[-1] == 0.095


async def test_a_source_that_was_taken_away_is_withdrawn(sweep: Path) -> None:
    records = await memory_records(lambda: 0.0)
    async with publishing(records, profile_results_dir=str(sweep)):
        await settled(records, 1)
    async with publishing(records, 200.0):
        (found,) = await settled(records, 2)
    assert {f.source for f in found.roles.values()} == {Source.LIVE}


async def test_where_nothing_is_known_nothing_is_said() -> None:
    records = await memory_records(lambda: 0.0)
    async with publishing(records):
        assert await settled(records, 0) == []


async def test_a_source_that_was_asked_for_and_has_nothing_is_said_at_every_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = await memory_records(lambda: 0.0)
    for starts in (1, 2):
        async with publishing(records, profile_results_dir=str(tmp_path)):
            (found,) = await settled(records, 1)
        assert found.roles["decode"].source == Source.LIVE
        assert "holds no profile" in found.roles["decode"].not_used[Source.FILES]
        said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(said) == 2 * starts  # of two roles
        assert said[-1].startswith(f"{DGD}: decode speed from live FPMs, because of profile directory")


def test_a_simulation_says_what_a_source_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = config(benchmark_files={"decode": str(tmp_path / "none")}, mode="decode")
    assert profiles_known(asked, DGD, 1.0) is None
    assert "because of benchmark_files" in caplog.text


async def test_garbage_on_the_stream_is_replaced(sweep: Path) -> None:
    records = await memory_records(lambda: 0.0)
    await records.bus.publish(Outgoing(PROFILES.name, DGD, b"{}", {}))
    async with publishing(records, profile_results_dir=str(sweep)):
        (found,) = await settled(records, 2)
    assert found.roles["decode"].source == Source.FILES


async def test_a_bus_that_is_away_is_tried_again(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.streams.runtime.profiles.RETRY_S", 0.01)
    broker = MemoryBroker(lambda: 0.0)
    records = await memory_records(lambda: 0.0, broker=broker)
    broker.available = False
    async with publishing(records, profile_results_dir=str(sweep)):
        await asyncio.sleep(0.1)
        broker.available = True
        assert len(await settled(records, 1)) == 1


async def test_a_running_planner_says_in_its_reports_where_speed_is_known_from(sweep: Path) -> None:
    clock = VirtualClock(1_700_000_000.0)
    records = await memory_records(clock.now)
    raw = {"optimization_target": "sla", "profile_results_dir": str(sweep), "load_adjustment_interval_seconds": 1}
    reports: list[TickReport] = []
    stop = asyncio.Event()
    task = asyncio.create_task(
        serve(
            settings(raw | {"enable_load_scaling": True}),
            records,
            stop,
            clock=clock,
            on_tick=lambda said: reports.extend(r for r in said if isinstance(r, TickReport)),
        )
    )
    try:
        await eventually(
            lambda: task.done() or any(r.roles["prefill"].speed_source == Source.FILES for r in reports), 20.0
        )
    finally:
        stop.set()
        await task
    assert {r.roles["decode"].speed_source for r in reports[-1:]} == {Source.FILES}
    assert await records.bus.last(TICKS, DGD) is not None


async def test_ai_configurator_is_asked_in_a_process_of_its_own(sweep: Path) -> None:
    """The words are its refusal, from over there: here the package would not be asked at all."""
    found = await loaded(config(aic_interpolation=AIC, profile_results_dir=str(sweep)))
    assert "AI Configurator" in found["decode"].not_used[Source.AIC]
    assert found["decode"].source == Source.FILES


async def test_a_process_that_dies_is_a_source_that_failed(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying:
        def __init__(self, *_: object, **__: object) -> None: ...

        def submit(self, *_: object) -> "Future[None]":
            raise BrokenProcessPool

        def shutdown(self, **_: object) -> None: ...

    monkeypatch.setattr("headrace.streams.runtime.profiles.ProcessPoolExecutor", Dying)
    found = await loaded(config(aic_interpolation=AIC, profile_results_dir=str(sweep)))
    assert {p.source for p in found.values()} == {Source.FILES}
    assert "process died" in found["prefill"].not_used[Source.AIC]
