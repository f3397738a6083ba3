"""The picture of `headrace forecast evaluate`: load, and what was foretold for it. Needs matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.models.forecast.extras import has
from headrace.schemas.errors import ConfigError

if TYPE_CHECKING:
    from headrace.streams.cli.forecast_evaluate import Judged, Results
    from headrace.streams.runtime.recorded_load import Series

ENDINGS = (".png", ".svg", ".pdf")
MOST_WINDOWS = 300  # of a series: more is a blur
BASELINE = "constant"
# Colours that are told apart with every kind of colour vision (Okabe and Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def check_plot(path: str) -> None:
    """Raises ConfigError where no picture could be written."""
    if not has("matplotlib"):
        raise ConfigError("--plot needs matplotlib: pip install headrace[plot]")
    if Path(path).suffix not in ENDINGS:
        raise ConfigError(f"--plot {path}: end it in {', '.join(ENDINGS)}")
    if not Path(path).resolve().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no such folder")


def write_plot(results: "Results", path: str) -> None:
    """One panel a series: the newest windows, with every forecast one window ahead. Raises ConfigError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2 * len(results)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (series, judged) in zip(figure.subplots(len(results), 1, squeeze=False)[:, 0], results, strict=True):
        _panel(axes, series, judged)
    try:
        figure.savefig(path, dpi=120)
    except OSError as e:
        raise ConfigError(f"--plot {path}: cannot be written: {e}") from e


def _panel(axes: Any, series: "Series", judged: "list[Judged]") -> None:
    n = len(series.values)
    first = max(1, n - MOST_WINDOWS)
    unit, seconds = ("hours", 3600.0) if n * series.interval_s > 7200 else ("minutes", 60.0)
    times = [w * series.interval_s / seconds for w in range(first, n)]
    axes.plot(times, series.values[first:], color="#222222", linewidth=1.6, label="load", zorder=3)
    shown = [j for j in judged if j.foretold and j.predictor != BASELINE]
    for colour, j in zip(COLOURS * len(shown), shown, strict=False):
        label = f"{j.predictor}, WAPE {j.scores[1].wape:.1%}" if 1 in j.scores else j.predictor
        axes.plot(times, j.foretold[first - 1 : n - 1], color=colour, linewidth=1.0, alpha=0.9, label=label)
    last = next(j for j in judged if j.predictor == BASELINE)
    wape = f", WAPE of the last value {last.scores[1].wape:.1%}" if 1 in last.scores else ""
    axes.set_title(
        f"{series.name}: forecasts one window ({series.interval_s:g} s) ahead{wape}", fontsize=10, loc="left"
    )
    axes.set_xlabel(unit)
    axes.set_ylabel("requests/s")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, ncols=3, frameon=False)
