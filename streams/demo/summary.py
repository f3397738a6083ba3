"""The end of the demonstration: what was kept, what it cost, and what the best fixed fleet would have done."""

from rich.console import RenderableType
from rich.table import Table

from headrace.connectors.simulator.report import SimulationReport
from headrace.connectors.simulator.sweep import Comparison, FleetResult, compare


def comparison(report: SimulationReport, results: list[FleetResult]) -> Comparison:
    return compare(results, report.goodput, report.gpu_hours)


def table(report: SimulationReport, compared: Comparison, *, issued: int, settled: int) -> RenderableType:
    """The closing table."""
    t = Table(title="What came of it", title_justify="left", title_style="bold", header_style="dim")
    for name in ("", "goodput", "GPU-hours", "TTFT p99", "ITL p99"):
        t.add_column(name, justify="left" if not name else "right")
    t.add_row(
        "Headrace", f"{report.goodput:.1%}", f"{report.gpu_hours:.2f}", _ms(report.ttft_ms.p99), _ms(report.itl_ms.p99)
    )
    line = compared.goodput_at_equal_gpu_hours
    if line is not None:
        t.add_row(
            "fixed fleets at equal GPU-hours, on the line between them",
            f"{line:.1%}",
            f"{report.gpu_hours:.2f}",
            "",
            "",
        )
    for title, fleet in (
        ("best fixed fleet at no more GPU-hours", compared.best_no_dearer),
        ("cheapest fixed fleet that does no worse", compared.cheapest_no_worse),
    ):
        if fleet is None:
            t.add_row(f"{title}: none of those tried", "", "", "", "")
        else:
            counts = ", ".join(f"{n} {role}" for role, n in fleet.fleet.items())
            cells = (f"{fleet.goodput:.1%}", f"{fleet.gpu_hours:.2f}", _ms(fleet.ttft_ms.p99), _ms(fleet.itl_ms.p99))
            t.add_row(f"{title} ({counts})", *cells)
    t.caption = (
        f"{report.requests} requests, {report.finished} finished; goodput: both TTFT <= {report.sla.ttft_ms:g} ms and "
        f"mean ITL <= {report.sla.itl_ms:g} ms. {issued} decisions issued, {settled} settled."
    )
    t.caption_justify = "left"
    return t


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"
