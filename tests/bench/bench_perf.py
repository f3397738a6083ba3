"""Observe, fit and estimate: an `EngineModel` against a refit from scratch for every estimate, in one run.

The baseline works as the reference planner does: it keeps 64 raw rows, fits `sklearn.linear_model.LinearRegression` to
them for each estimate, and asks that for one load. Headrace learns every row and bends its line where that pays. CPU
seconds of one process; the ratio is what compares between machines.

python tests/bench/bench_perf.py [rows]
"""

import os
import sys
from collections.abc import Callable, Sequence
from time import process_time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))  # one core each

import numpy as np
from sklearn.linear_model import LinearRegression

from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits, EngineLoad, itl_s, ttft_s
from headrace.schemas.base import AGG, DECODE

ROWS = 20_000
KEPT = 64  # rows of the baseline
REFITS = 1000  # of the baseline that are timed
REPEATS = 3
LEAST = 50.0  # times the baseline: what is wanted

Rows = list[tuple[int, int, int, int, float]]


def iterations(rows: int, *, prefills: float) -> Rows:
    """Iterations of a busy engine: prefill requests and tokens, decode requests and KV tokens, wall time."""
    rng = np.random.default_rng(0)
    n = rng.integers(1, 200, rows)
    kv = n * rng.integers(500, 3000, rows)
    tokens = np.where(rng.random(rows) < prefills, rng.integers(64, 8192, rows), 0)
    wall = (5 + 0.05 * n + 0.0001 * kv + 0.02 * tokens) / 1000 * (1 + 0.03 * rng.standard_normal(rows))
    columns = [c.tolist() for c in ((tokens > 0).astype(int), tokens, n, kv, wall)]
    return list(zip(*columns, strict=True))


def loads(rows: Rows) -> list[EngineLoad]:
    """What each iteration's engine has in front of it."""
    return [EngineLoad(0, 2 * t, p, t, n, kv) for p, t, n, kv, _ in rows]


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of the quickest run."""
    found = []
    for _ in range(REPEATS):
        began = process_time()
        work()
        found.append(process_time() - began)
    return min(found)


def refit_each(rows: Rows) -> None:
    """The baseline: after each iteration a refit, and the ITL with one more request."""
    x: list[list[int]] = []
    y: list[float] = []
    for _, _, n, kv, wall in rows[:REFITS]:
        x.append([n, kv])
        y.append(wall)
        del x[:-KEPT], y[:-KEPT]
        if len(x) >= 5:
            fit = LinearRegression().fit(np.array(x), np.array(y))
            max(1e-6, float(fit.predict(np.array([[n + 1, kv + 900]]))[0]))


def ask_each(rows: Rows, asked: Sequence[EngineLoad]) -> None:
    """After each iteration an ITL."""
    model = EngineModel()
    for (p, t, n, kv, wall), load in zip(rows, asked, strict=True):
        model.learn([p], [t], [n], [kv], [wall])
        itl_s(model, DECODE, load)


def in_ticks(rows: Rows, asked: Sequence[EngineLoad], engines: int) -> None:
    """As a planner does: an iteration of each engine is learned, all of them are taken in, each engine is asked."""
    model, limits = EngineModel(), EngineLimits()
    for start in range(0, len(rows), engines):
        model.learn(*zip(*rows[start : start + engines], strict=True))
        model.settle()
        for load in asked[start : start + engines]:
            ttft_s(model, AGG, load, limits)


def tick(model: EngineModel, rows: Rows) -> None:
    """What a tick costs after new rows: three fits and a capacity."""
    model.learn(*zip(*rows[:20], strict=True))
    model.settle()
    for kind in Kind:
        model.ready(kind)
    capacity(model, AGG, EngineLimits(), RequestShape(2000, 300), LatencyTargets(0.5, 0.05))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    decodes, both = iterations(count, prefills=0.0), iterations(count, prefills=0.1)
    baseline = cpu_s(lambda: refit_each(decodes)) / min(count, REFITS)
    print(f"{count} iterations, best of {REPEATS}; observe + fit + estimate")
    print(f"baseline: scikit-learn, a refit per estimate   {1e6 * baseline:8.1f} us  {1 / baseline:10,.0f} /s")
    asked = loads(decodes)
    each = cpu_s(lambda: ask_each(decodes, asked)) / count
    say("an estimate after each iteration", each, baseline)
    asked = loads(both)
    for engines in (8, 64):
        spent = cpu_s(lambda engines=engines: in_ticks(both, asked, engines)) / count
        say(f"ticks of {engines} aggregated engines, each asked", spent, baseline)
    model = EngineModel()
    model.learn(*zip(*both, strict=True))
    print(f"three fits and a capacity                      {1e6 * cpu_s(lambda: tick(model, both)):8.0f} us a tick")
    print(f"wanted: {LEAST:g} x; an estimate after each iteration is {baseline / each:.0f} x")


def say(what: str, each_s: float, baseline_s: float) -> None:
    print(f"{what:46} {1e6 * each_s:8.1f} us  {1 / each_s:10,.0f} /s  {baseline_s / each_s:6.1f} x baseline")


if __name__ == "__main__":
    main()
