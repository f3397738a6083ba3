"""Learning must not be what limits telemetry: rows learned per second against FPMs decoded per second, in one run.

Prints rates and their ratio; the ratio is what compares between machines. Also the cost of what a tick asks.
"""

import time
from collections.abc import Callable

import numpy as np

from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits
from headrace.schemas.base import AGG
from headrace.schemas.fpm import Fpm, ScheduledRequests, decode_fpm, encode_fpm

ROWS = 100_000
Columns = list[list[float]]


def iterations() -> Columns:
    """Columns of a busy aggregated engine, as an observer collects them: Python numbers in lists."""
    rng = np.random.default_rng(0)
    n = rng.integers(1, 200, ROWS)
    kv = n * rng.integers(500, 3000, ROWS)
    tokens = np.where(rng.random(ROWS) < 0.1, rng.integers(64, 8192, ROWS), 0)
    wall = (5 + 0.05 * n + 0.0001 * kv + 0.02 * tokens) / 1000 * (1 + 0.03 * rng.standard_normal(ROWS))
    return [c.tolist() for c in ((tokens > 0).astype(int), tokens, n, kv, wall)]


def payloads(columns: Columns) -> list[bytes]:
    """The same iterations as their engines would publish them."""
    out = []
    for i, (p, t, n, k, wall) in enumerate(zip(*columns, strict=True)):
        work = ScheduledRequests(
            num_prefill_requests=int(p),
            sum_prefill_tokens=int(t),
            num_decode_requests=int(n),
            sum_decode_kv_tokens=int(k),
        )
        fpm = Fpm(worker_id="9041998999865286256", counter_id=i, wall_time=wall, scheduled_requests=work)
        out.append(encode_fpm(fpm))
    return out


def best_of(work: Callable[[], object], times: int = 3) -> float:
    """Seconds of the fastest run."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def learn_all(columns: Columns, batch: int) -> EngineModel:
    model = EngineModel()
    for start in range(0, ROWS, batch):
        model.learn(*(c[start : start + batch] for c in columns))
    return model


def tick(model: EngineModel, columns: Columns) -> None:
    """What a tick costs after new rows: three fits and a capacity."""
    model.learn(*(c[:5] for c in columns))
    for kind in Kind:
        model.ready(kind)
    capacity(model, AGG, EngineLimits(), RequestShape(2000, 300), LatencyTargets(0.5, 0.05))


def main() -> None:
    columns = iterations()
    encoded = payloads(columns)
    decoded_per_s = ROWS / best_of(lambda: [decode_fpm(p) for p in encoded])
    print(f"decode           {decoded_per_s:12,.0f} FPMs/s   {1e6 / decoded_per_s:.2f} us each")
    for batch in (20, 100, 512):
        rate = ROWS / best_of(lambda batch=batch: learn_all(columns, batch))
        ratio = rate / decoded_per_s
        print(f"learn, {batch:3d} a call {rate:12,.0f} rows/s   {1e6 / rate:.2f} us each   {ratio:.1f} x decode")
    model = learn_all(columns, 512)
    print(f"a tick's queries {1e3 * best_of(lambda: tick(model, columns), 50):12.2f} ms")


if __name__ == "__main__":
    main()
