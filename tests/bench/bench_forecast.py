"""Every forecaster on recorded load beside the last value, and what a window costs `auto` at 2,000 points of history.

python tests/bench/bench_forecast.py [--all]     --all: arima and prophet fit every window, all of them (half an hour)

WAPE one window ahead, and at the horizons that cover a start-up of 30, 60 and 180 s. In brackets beside the last value:
below 1 is better. Needs the recorded load of the shared folder beside the repository for the table.
"""

import math
import os
import sys
from pathlib import Path
from time import perf_counter

from headrace.models.forecast.base import steps_ahead, warm_up
from headrace.models.forecast.evaluate import replay, score
from headrace.models.forecast.registry import FORECASTERS, make_forecaster
from headrace.streams.runtime.fit_worker import quiet
from headrace.streams.runtime.recorded_load import read_series

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
STARTUPS_S = (30.0, 60.0, 180.0)
RECORDED = (
    ("rates/servegen_m-large_rate_10min.csv", None),
    ("rates/servegen_m-small_rate_10min.csv", None),
    ("rates/servegen_mm-image_rate_10min.csv", None),
    *(("traces/azure_llm_2023_conv.csv", s) for s in (10.0, 60.0, 180.0)),
    *(("traces/mooncake_conversation.jsonl.gz", s) for s in (10.0, 60.0, 180.0)),
)
LIGHT = ("constant", "kalman", "seasonal", "auto")
SLOW = ("arima", "prophet")
NEWEST = 150  # windows on which the slow ones are judged, and the others beside them once more
REFIT_EVERY = 4
POINTS, MEASURED = 2000, 128
BUDGET_MS = 20.0


def cpu_s() -> float:
    """CPU of this process and of the solvers that it started, seconds."""
    return sum(os.times()[:4])


def table(names: tuple[str, ...], newest: int | None, options: dict[str, int]) -> None:
    print(f"{'series':<24}{'window':>7}{'ahead':>7}" + "".join(f"{name:>17}" for name in names))
    for file, interval_s in RECORDED:
        series = read_series(DATA / file, interval_s)
        values = series.values[-newest:] if newest else series.values
        horizons = sorted({1, *(steps_ahead(s, series.interval_s) for s in STARTUPS_S)})
        made = {n: make_forecaster(n, interval_s=series.interval_s, **options) for n in names}
        foretold = {n: replay(forecaster, values, horizons) for n, forecaster in made.items()}
        for h in horizons:
            found = {n: score(values, foretold[n][h], h) for n in names}
            wapes = {n: s.wape for n, s in found.items() if s is not None}
            cells = (f"{wape:>9.2%} ({wape / wapes['constant']:.3f})" for wape in wapes.values())
            place = f"{series.name[:23]:<24}{series.interval_s:>5.0f} s{h * series.interval_s:>5.0f} s"
            print(place + "".join(f"{c:>17}" for c in cells))


def day(n: int) -> float:
    return 100 + 50 * math.sin(n * 2 * math.pi / 144) + 20 * math.sin(n * n)


def costs() -> None:
    """Per series and window: with the fits that fall due, and without them, as where workers make them."""
    print(f"\none window at {POINTS} points of history, ms of CPU (mean over {MEASURED} windows)")
    for name in FORECASTERS:
        forecaster = make_forecaster(name)
        warm_up(forecaster, [day(n) for n in range(POINTS)])
        forecaster.forecast()  # imports and first fits are nobody's
        forecaster.inline = False
        began = perf_counter()
        for n in range(MEASURED):
            forecaster.observe(day(POINTS + n))
            forecaster.forecast()
        tick_ms = 1000 * (perf_counter() - began) / MEASURED
        forecaster.inline = True
        before = cpu_s()
        for n in range(MEASURED):
            forecaster.observe(day(POINTS + MEASURED + n))
            forecaster.forecast()
        whole_ms = 1000 * (cpu_s() - before) / MEASURED
        note = f"   {BUDGET_MS / whole_ms:.1f} times below the budget of {BUDGET_MS:g} ms" if name == "auto" else ""
        print(f"{name:<10}{tick_ms:>9.3f} in the tick{whole_ms:>9.3f} with all fits{note}")


def main() -> None:
    quiet()
    if not DATA.is_dir():
        print("no recorded load: it is in the shared folder beside the repository")
    elif "--all" in sys.argv:
        table((*LIGHT, *SLOW), None, {})
    else:
        print("all windows")
        table(LIGHT, None, {})
        print(f"\nthe newest {NEWEST} windows; arima and prophet are fitted every {REFIT_EVERY} of them")
        table((*LIGHT, *SLOW), NEWEST, {"update_every": REFIT_EVERY, "refit_every": REFIT_EVERY})
    costs()


if __name__ == "__main__":
    main()
