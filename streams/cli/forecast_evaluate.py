"""What `headrace forecast evaluate` does: replay, score, print, recommend."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from math import exp, log

import click

from headrace.models.forecast.auto import LIBRARIES
from headrace.models.forecast.base import steps_ahead
from headrace.models.forecast.evaluate import Score, replay, score
from headrace.models.forecast.registry import FORECASTERS, make_forecaster
from headrace.schemas.errors import ConfigError
from headrace.streams.cli import output
from headrace.streams.cli.output import Column, Row
from headrace.streams.runtime.fit_worker import quiet
from headrace.streams.runtime.recorded_load import Series, read_series

BASELINE = "constant"
ALIKE = 0.01  # of the error: within it the cheaper forecaster is recommended
CHEAPEST_FIRST = ("constant", "kalman", "seasonal", "auto", "arima", "prophet")
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # characters of a sparkline


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was asked for. `horizons` are seconds; `predictors` None = all that are installed."""

    files: tuple[str, ...]
    interval_s: float | None
    horizons: tuple[float, ...]
    predictors: tuple[str, ...] | None
    log1p: bool
    newest: int | None
    refit_every: int
    plot: str | None
    as_json: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """One forecaster on one series: scores by horizon in windows, forecasts one window ahead, or why there are none."""

    predictor: str
    scores: dict[int, Score] = field(default_factory=dict)
    foretold: tuple[float, ...] = ()
    ms_per_window: float = 0.0
    failure: str = ""


Results = list[tuple[Series, list[Judged]]]


def evaluate_files(asked: Evaluation) -> None:
    """Raises ConfigError for a file that cannot be read, a forecaster that is unknown, or one that is not installed."""
    quiet()
    if asked.plot is not None:
        from headrace.streams.cli.forecast_plot import check_plot

        check_plot(asked.plot)  # before minutes of work
    names, missing = _names(asked)
    series = [_newest(read_series(file, asked.interval_s), asked.newest) for file in asked.files]
    results = [(s, [_judge(name, s, asked) for name in names]) for s in series]
    rows = [row for s, judged in results for row in _rows(s, judged)]
    if not asked.as_json and output.on_terminal():
        for s in series:
            output.write(
                f"{output.printable(s.name)}  {sparkline(s.values)}  {len(s.values)} windows of {s.interval_s:g} s"
            )
    output.show(rows, COLUMNS, as_json=asked.as_json)
    for note in (*missing, recommendation(results)):
        click.echo(note, err=True)
    if asked.plot is not None:
        from headrace.streams.cli.forecast_plot import write_plot

        write_plot(results, asked.plot)
        click.echo(f"written: {asked.plot}", err=True)


def _names(asked: Evaluation) -> tuple[list[str], list[str]]:
    """The forecasters to judge, the last value first; and a note on each that is not installed."""
    wanted = CHEAPEST_FIRST if asked.predictors is None else asked.predictors
    names, missing = [BASELINE], []
    for name in dict.fromkeys(wanted):
        try:
            make_forecaster(name)
        except ConfigError as e:
            if asked.predictors is not None:
                raise
            missing.append(f"not judged: {e}")
            continue
        if name in LIBRARIES:
            import_module(LIBRARIES[name])  # now, so that its seconds are nobody's
        if name != BASELINE:
            names.append(name)
    return names, missing


def _newest(series: Series, newest: int | None) -> Series:
    return series if newest is None else Series(series.name, series.interval_s, series.values[-newest:])


def _judge(name: str, series: Series, asked: Evaluation) -> Judged:
    """A forecaster that fails has no score, so that it is never recommended (dynamo#14513)."""
    horizons = sorted({1, *(steps_ahead(s, series.interval_s) for s in asked.horizons)})
    options = {"log1p": asked.log1p, "interval_s": series.interval_s}
    options |= dict.fromkeys(("update_every", "refit_every"), asked.refit_every)
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{name} on {output.printable(series.name)} ...", err=True, nl=False)
    began = time.process_time()
    try:
        foretold = replay(make_forecaster(name, **options), series.values, horizons)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as e:
        return Judged(name, failure=f"{type(e).__name__}: {e}")
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", err=True, nl=False)
    ms = 1000 * (time.process_time() - began) / max(1, len(series.values))
    scores = {h: found for h in horizons if (found := score(series.values, foretold[h], h)) is not None}
    return Judged(name, scores, tuple(foretold[1]), ms)


def _rows(series: Series, judged: list[Judged]) -> Iterator[Row]:
    last = next(j for j in judged if j.predictor == BASELINE)
    for j in judged:
        if j.failure:
            yield {"series": series.name, "predictor": j.predictor, "failure": j.failure}
        for horizon, found in j.scores.items():
            base = last.scores[horizon].mae
            yield {
                "series": series.name,
                "interval_s": series.interval_s,
                "horizon_s": horizon * series.interval_s,
                "predictor": j.predictor,
                "mae": found.mae,
                "wape": found.wape,
                "vs_last": found.mae / base if base else None,
                "windows": found.windows,
                "ms_per_window": j.ms_per_window,
            }


def _number(key: str, form: str) -> Column:
    titles = {"mae": "MAE", "wape": "WAPE", "vs_last": "VS LAST", "horizon_s": "AHEAD", "ms_per_window": "MS"}

    def text(row: Row) -> str:
        value = row.get(key)
        return "-" if value is None else format(value, form)

    return Column(titles.get(key, key.upper()), text, right=True, optional=key == "ms_per_window")


COLUMNS = (
    Column("SERIES", lambda row: str(row["series"]), wrap=True),
    _number("horizon_s", "g"),
    Column("PREDICTOR", lambda row: str(row["predictor"])),
    _number("mae", ".4g"),
    _number("wape", ".2%"),
    _number("vs_last", ".3f"),
    _number("ms_per_window", ".2f"),
    Column("", lambda row: str(row.get("failure", "")), wrap=True),
)


def recommendation(results: Results) -> str:
    """One sentence. The error beside the last value's, as the geometric mean over series and horizons, decides."""
    ratios: dict[str, list[float]] = {}
    failed: set[str] = set()
    for _, judged in results:
        last = next(j for j in judged if j.predictor == BASELINE)
        for j in judged:
            failed |= {j.predictor} if j.failure else set()
            for horizon, found in j.scores.items():
                if base := last.scores[horizon].mae:
                    ratios.setdefault(j.predictor, []).append(found.mae / base)
    means = {n: exp(sum(log(max(r, 1e-9)) for r in rs) / len(rs)) for n, rs in ratios.items() if n not in failed}
    if not means:
        return "nothing to recommend: the load never changes"
    best = min(means.values())
    name = min((n for n, m in means.items() if m <= best * (1 + ALIKE)), key=_cost)
    if name == BASELINE:
        return "recommended: load_predictor: constant (nothing beats the last value by more than 1 %)"
    worst = max(ratios[name])
    return f"recommended: load_predictor: {name} (error {means[name]:.3f} times the last value's" + (
        f"; at worst {worst:.3f} times)" if len(ratios[name]) > 1 else ")"
    )


def _cost(name: str) -> int:
    return CHEAPEST_FIRST.index(name) if name in CHEAPEST_FIRST else len(FORECASTERS)


def sparkline(values: tuple[float, ...], width: int = WIDTH) -> str:
    """The series in a line of bars, each the mean of its share of the windows.

    >>> sparkline((0.0, 1.0, 2.0, 7.0))
    '▁▂▃█'
    """
    size = min(width, len(values))
    edges = [round(n * len(values) / size) for n in range(size + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    top = max(means) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int(mean / top * (len(BARS) - 1) + 0.5))] for mean in means)
