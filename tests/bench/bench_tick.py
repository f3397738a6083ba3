"""What one tick costs, report included, with 8, 64 and 256 workers; and its parts: tick, snapshot, encoding the report.

python tests/bench/bench_tick.py [mode]
"""

import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from world import DGD, LIMITS, batch, decode_s, fpm, prefill_s

from headrace.schemas.base import Role
from headrace.schemas.codec import encode
from headrace.schemas.config import planner_config
from headrace.schemas.fpm import Fpm
from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.streams.planner import Planner

TICKS = 40
FLEETS = (8, 64, 256)


def configured(mode: str) -> Planner:
    raw = {"mode": mode, "optimization_target": "sla", "enable_load_scaling": True, "ttft_ms": 1500, "itl_ms": 300}
    return Planner(planner_config(raw | {"max_gpu_budget": -1, "advisory": True}), DGD)


def telemetry(planner: Planner, workers: int, at: float, counter: int) -> None:
    """One busy FPM of every engine and an inventory, as of `at`."""
    roles = planner.config.roles
    for role in roles:
        planner.handle(batch(role, at, *(busy(role, i, counter) for i in range(workers // len(roles)))), at)
    sizes = {
        role: RoleInventory(ready=workers // len(roles), gpus_per_replica=1, capabilities=LIMITS) for role in roles
    }
    planner.handle(WorkerInventory(dgd=DGD, source="bench", observed_at=at, roles=sizes), at)


def busy(role: Role, i: int, counter: int) -> Fpm:
    n, prompt = 1 + (i + counter) % 24, 100 + 37 * ((i + counter) % 40)
    decodes, prefills = role != "prefill", role != "decode"
    wall = (prefill_s(prompt) if prefills else 0.0) + (decode_s(n, 900 * n) if decodes else 0.0)
    return fpm(
        str(1000 + i),
        counter,
        wall=wall,
        prefill=(1, prompt) if prefills else (0, 0),
        decode=(n, 900 * n) if decodes else (0, 0),
        queued_prefill=(1, 2 * prompt) if prefills else (0, 0),
    )


def measure(mode: str, workers: int) -> dict[str, float]:
    """Seconds of the fastest tick, snapshot and encoding among `TICKS`, once the engines' speed is known."""
    planner = configured(mode)
    best = dict.fromkeys(("tick", "encode", "snapshot"), float("inf"))
    for i in range(1, TICKS + 1):
        at = 5.0 * i
        for part in range(4):
            telemetry(planner, workers, at - 1.0 + 0.2 * part, 4 * i + part)
        began = perf_counter()
        records = planner.tick(at)
        ticked = perf_counter()
        for record in records:
            encode(record)
        encoded = perf_counter()
        planner.snapshot()
        took = (ticked - began, encoded - ticked, perf_counter() - encoded)
        if i > TICKS // 2:
            best = {name: min(before, now) for (name, before), now in zip(best.items(), took, strict=True)}
    return best


def main() -> None:
    for mode in sys.argv[1:] or ("disagg", "agg"):
        ticks = {}
        for workers in FLEETS:
            best = measure(mode, workers)
            ticks[workers] = best["tick"]
            parts = ", ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in best.items())
            print(f"{mode}, {workers:3d} workers: {parts}")
        print(f"{mode}: 64 workers to 8: {ticks[64] / ticks[8]:.2f}")


if __name__ == "__main__":
    main()
