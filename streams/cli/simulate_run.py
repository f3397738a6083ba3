"""Run a simulation and print its report; imported only when one is run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.report import SimulationReport
from headrace.connectors.simulator.simulate import Options, simulate
from headrace.connectors.simulator.sweep import Comparison, FleetResult, candidate_fleets, compare
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.config import PlannerConfig
from headrace.schemas.errors import ConfigError
from headrace.streams.fixed_fleets import fixed_fleets
from headrace.streams.planner import Planner
from headrace.streams.runtime.fit_worker import quiet
from headrace.streams.runtime.profiles import profiles_known
from headrace.streams.runtime.warmup import warm_up
from headrace.streams.settings import load
from headrace.streams.settings_file import read_file
from headrace.streams.simulation import cluster_config, simulation_settings, trace_of

DEFAULTS: dict[str, Any] = {
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "max_gpu_budget": -1,
}


@dataclass(frozen=True, slots=True)
class Job:
    """A trace, the cluster it meets, and the planner that plans it."""

    trace: Trace
    cluster: SimulatorConfig
    planner: PlannerConfig
    seed: int

    @classmethod
    def of(cls, config_path: str | None, overrides: Mapping[str, Any], flags: Mapping[str, Any]) -> Self:
        given = read_file(config_path) if config_path else {}
        defaults = {} if config_path else {k: v for k, v in DEFAULTS.items() if k not in given}
        found = load(config_path, overrides={**defaults, **overrides})
        chosen = simulation_settings(found.edges.simulator, **flags)
        cluster = cluster_config(chosen, found)
        return cls(trace_of(chosen), cluster, found.planner, chosen.seed)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints."""

    report: SimulationReport
    static: list[FleetResult]
    comparison: Comparison | None


def run_job(job: Job, *, fleets: int, as_json: bool) -> None:
    quiet()  # forecasters fit in this process
    console = Console(stderr=as_json)
    quiet()  # fits are made here, beside the bar
    with _bar(console) as step:
        planner = Planner(job.planner, job.cluster.dgd, start=job.cluster.origin_s)
        warm_up(planner)
        planner.begin_epoch()
        known = profiles_known(job.planner, job.cluster.dgd, job.cluster.origin_s)
        if known is not None:
            planner.handle(known, job.cluster.origin_s)
        with step("planning") as progress:
            report = simulate(job.trace, job.cluster, planner, Options(seed=job.seed, progress=progress))
        results: list[FleetResult] = []
        if fleets:
            with step("fixed fleets") as progress:
                results = fixed_fleets(job.trace, job.cluster, _fleets(job, report, fleets), progress)
    comparison = compare(results, report.goodput, report.gpu_hours) if results else None
    if as_json:
        sys.stdout.buffer.write(
            msgspec.json.encode(Result(report=report, static=results, comparison=comparison)) + b"\n"
        )
    else:
        _print(console, job, report, results, comparison)


def _fleets(job: Job, report: SimulationReport, limit: int) -> list[dict[str, int]]:
    try:
        return candidate_fleets(job.trace, job.cluster, limit=limit)
    except ConfigError:  # no fleet meets the SLA: compare with the ones the run began and ended with
        return [f for f in (report.fleet_at_start, report.fleet_at_end) if all(f.values())]


@contextmanager
def _bar(console: Console) -> Iterator[Any]:
    columns = (
        TextColumn("{task.description:>14}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        @contextmanager
        def step(name: str) -> Iterator[Callable[[float], None]]:
            task = progress.add_task(name, total=1.0)
            yield lambda share: progress.update(task, completed=share)
            progress.update(task, completed=1.0)

        yield step


def _print(
    console: Console, job: Job, r: SimulationReport, results: Sequence[FleetResult], comparison: Comparison | None
) -> None:
    sla = f"TTFT {r.sla.ttft_ms:g} ms, ITL {r.sla.itl_ms:g} ms"
    console.print(f"[bold]{r.trace}[/bold]: {r.requests} requests in {job.trace.duration_s / 60:.0f} min; SLA {sla}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "fleet", "goodput", "GPU-hours", "TTFT p50/p99 ms", "ITL p50/p99 ms", "actions"):
        table.add_column(name, justify="left" if name in ("", "fleet") else "right")
    end = "/".join(str(n) for n in r.fleet_at_end.values())
    start = "/".join(str(n) for n in r.fleet_at_start.values())
    table.add_row("[bold]Headrace[/bold]", f"{start} -> {end}", f"{r.goodput:.1%}", f"{r.gpu_hours:.2f}",
                  _pair(r.ttft_ms), _pair(r.itl_ms), str(len(r.actions)))  # fmt: skip
    marks = _marks(comparison)
    for f in sorted(results, key=lambda f: f.gpu_hours):
        fleet = "/".join(str(n) for n in f.fleet.values())
        table.add_row(marks.get(id(f), "fixed"), fleet, f"{f.goodput:.1%}", f"{f.gpu_hours:.2f}",
                      _pair(f.ttft_ms), _pair(f.itl_ms), "0")  # fmt: skip
    if r.bound is not None:
        hours = "the SLA cannot be met" if r.bound.gpu_hours is None else f"{r.bound.gpu_hours:.2f}"
        table.add_row("lower bound", "ceil(load/capacity)", "", hours, "", "", "instant")
    console.print(table)
    if comparison is not None and comparison.goodput_at_equal_gpu_hours is not None:
        line = comparison.goodput_at_equal_gpu_hours
        console.print(
            f"Fixed fleets at {r.gpu_hours:.2f} GPU-hours would keep {line:.1%} (on the line between them): "
            f"Headrace {r.goodput - line:+.1%}."
        )
    console.print(
        f"{r.decisions} decisions; {r.fpms} FPMs; {r.finished} finished, {r.unfinished} not, {r.refused} refused.",
        highlight=False,
    )


def _marks(comparison: Comparison | None) -> dict[int, str]:
    if comparison is None:
        return {}
    marks = {}
    if comparison.best_no_dearer is not None:
        marks[id(comparison.best_no_dearer)] = "fixed, best at no more GPU-hours"
    if comparison.cheapest_no_worse is not None:
        marks[id(comparison.cheapest_no_worse)] = "fixed, cheapest that does no worse"
    return marks


def _pair(p: Any) -> str:
    return "-" if p.p50 is None else f"{p.p50:.0f} / {p.p99:.0f}" if p.p50 >= 100 else f"{p.p50:.1f} / {p.p99:.1f}"
