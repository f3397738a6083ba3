"""The live view in a terminal: load and forecast, replicas, latencies, decisions with their reasons and acks."""

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.schemas.ack import AckStatus
from headrace.schemas.decision import Decision
from headrace.schemas.tick_report import RoleReport
from headrace.streams.demo.simulator import Progress
from headrace.streams.demo.watch import Watch

BARS = " ▁▂▃▄▅▆▇█"
SPARK_WIDTH = 60
STATUS_STYLE = {
    AckStatus.APPLIED: "green",
    AckStatus.ACCEPTED: "yellow",
    AckStatus.REJECTED: "red",
    AckStatus.FAILED: "red",
    AckStatus.EXPIRED: "red",
}


def render(
    watch: Watch, progress: Progress | None, *, title: str, duration_s: float, sla: tuple[float, float]
) -> RenderableType:
    """One frame. `sla` is (TTFT ms, ITL ms)."""
    return Group(
        _header(watch, progress, title, duration_s),
        Panel(_load(watch), title="load and forecast", title_align="left", border_style="dim"),
        Panel(_roles(watch, sla), title="roles", title_align="left", border_style="dim"),
        Panel(_decisions(watch), title="decisions", title_align="left", border_style="dim"),
    )


def _header(watch: Watch, progress: Progress | None, title: str, duration_s: float) -> RenderableType:
    line = Table.grid(padding=(0, 2))
    if progress is None:
        return Text(f"{title}: starting", style="bold")
    line.add_row(
        Text(title, style="bold"),
        Text(f"{progress.at_s / 60:5.1f} of {duration_s / 60:.0f} min"),
        ProgressBar(total=duration_s, completed=min(progress.at_s, duration_s), width=24),
        Text(f"{progress.finished} of {progress.arrived} requests done"),
        Text(f"{progress.gpu_hours:.2f} GPU-hours"),
        Text(f"{watch.issued} decisions, {watch.settled} settled"),
    )
    return line


def _load(watch: Watch) -> RenderableType:
    times = [at for at, _ in (*watch.load, *watch.forecast)]
    top = max([v for _, v in (*watch.load, *watch.forecast)], default=0.0)
    table = Table.grid(padding=(0, 1))
    for name, points, style in (("seen", watch.load, "cyan"), ("forecast", watch.forecast, "magenta")):
        bars = spark(points, min(times), max(times), top) if times else ""
        now = f"{points[-1][1]:6.1f} requests/s" if points else "unknown yet"
        table.add_row(Text(name, style="dim"), Text(bars, style=style), Text(now))
    tick = watch.tick
    if tick is not None:
        lengths = ", ".join(f"{name.upper()} {tick.load[name]:.0f}" for name in ("isl", "osl") if name in tick.load)
        table.add_row(Text("lengths", style="dim"), Text(f"{lengths} tokens" if lengths else "unknown yet"), Text(""))
    return table


def spark(points: Iterable[tuple[float, float]], start: float, end: float, top: float, width: int = SPARK_WIDTH) -> str:
    """Values over time as bars of eight heights; a column without a value repeats the one before it."""
    columns: list[list[float]] = [[] for _ in range(width)]
    for at, value in points:
        columns[min(width - 1, int((at - start) / max(end - start, 1e-9) * width))].append(value)
    bars, last = [], None
    for column in columns:
        last = sum(column) / len(column) if column else last
        share = 0.0 if last is None or top <= 0 else last / top
        bars.append(" " if last is None else BARS[min(len(BARS) - 1, max(1, round(share * (len(BARS) - 1))))])
    return "".join(bars)


def _roles(watch: Watch, sla: tuple[float, float]) -> RenderableType:
    tick = watch.tick
    if tick is None:
        return Text("no tick yet")
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("role", "ready", "starting", "draining", "wanted", "estimated", "seen", "target", "reason"):
        table.add_column(name, justify="left" if name in ("role", "reason") else "right")
    for role, report in sorted(tick.roles.items(), key=lambda pair: pair[0] != "prefill"):
        table.add_row(role, *_counts(watch, role, report), *_latency(report, tick.load, sla), report.reason)
    return table


def _counts(watch: Watch, role: str, report: RoleReport) -> list[str]:
    found = watch.inventory.roles.get(role) if watch.inventory else None
    counts = ["?"] * 3 if found is None else [str(found.ready), str(found.starting), str(found.draining)]
    wanted = report.known.get("wanted", report.floor)
    return [*counts, "-" if wanted is None else f"{wanted:.0f}"]


def _latency(report: RoleReport, load: dict[str, float], sla: tuple[float, float]) -> list[RenderableType]:
    """Estimated, seen and target latency of a role: TTFT for prefill, ITL for decode, both for aggregated."""
    names = [n for n in ("ttft_ms", "itl_ms") if n in report.estimated] or [
        "ttft_ms" if "prefill" in report.known else "itl_ms"
    ]
    targets = {"ttft_ms": sla[0], "itl_ms": sla[1]}
    cells: list[list[tuple[str, str]]] = [[], [], []]
    for name in names:
        short = name.removesuffix("_ms").upper()
        for cell, values in zip(cells, (report.estimated, load, targets), strict=True):
            value = values.get(name)
            late = value is not None and value > targets[name] and values is not targets
            cell.append((f"{short} {'?' if value is None else f'{value:.1f}'} ms ", "red" if late else ""))
    return [Text.assemble(*cell) for cell in cells]


def _decisions(watch: Watch) -> RenderableType:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("id", "at", "replicas", "why", "ack"):
        table.add_column(name)
    for decision in reversed(watch.decisions):
        table.add_row(
            str(decision.decision_id),
            _clock(decision.issued_at),
            _moves(decision),
            _why(decision),
            _ack(watch, decision),
        )
    return table


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _moves(decision: Decision) -> str:
    return ", ".join(
        f"{role} {decision.previous.get(role, '?')} → {n}" if decision.previous.get(role) != n else f"{role} {n}"
        for role, n in sorted(decision.targets.items(), reverse=True)
    )


def _why(decision: Decision) -> str:
    moved = {
        role: why for role, why in decision.reasons.items() if decision.previous.get(role) != decision.targets.get(role)
    }
    return ", ".join(f"{role}: {why}" for role, why in sorted(moved.items(), reverse=True))


def _ack(watch: Watch, decision: Decision) -> Text:
    ack = watch.acks.get((decision.epoch, decision.decision_id))
    if decision.advisory:
        return Text("advice", style="dim")
    if ack is None:
        return Text("waiting", style="dim")
    return Text(f"{ack.status} after {max(0.0, ack.at - decision.issued_at):.0f} s", style=STATUS_STYLE[ack.status])
