"""What a tick costs with everything on: with 256 workers against 8, and for 1,000 DGDs of 8 workers on one core.

Everything on: both loops due, queue-aware capacity, forecasts, traffic windows, an inventory that names its workers,
and busy FPMs, in the batches that a source makes of them, decoded from the wire. To a tick belongs what a node then
does: the snapshot, compressed, and the encoding of the records. Times are CPU seconds.

python tests/bench/bench_scale.py [DGDs]
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from world import DGD, LIMITS, decode_s, fpm, mixed_s, prefill_s

from headrace.schemas.base import Role
from headrace.schemas.codec import decode, encode
from headrace.schemas.config import PlannerConfig, planner_config
from headrace.schemas.fpm import Fpm, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.schemas.traffic import Distribution, TrafficWindow
from headrace.streams.planner import Planner
from headrace.streams.runtime.recovery import snapshot_record

INTERVAL_S = 5.0  # between ticks
FASTEST = 20  # FPMs/s of each engine: iterations of 50 ms, the default ITL target
FLUSH_MS = 20  # of a source, by default
FLOWS = ((1, FLUSH_MS), (10, FLUSH_MS), (10, 200), (FASTEST, FLUSH_MS), (FASTEST, 200))  # FPMs/s; flush in ms
WARM = 4  # intervals until all is learned and both loops have run
MEASURED = 24
SIZES = (8, 256)  # workers
PARTS = ("handle", "tick", "encode", "snapshot")
VARIANTS = 5  # of what DGDs send, so that no two neighbours send the same
START = 1_790_000_000.0
WINDOW_S = 1.0  # of traffic, as a source scrapes it
BOUNDS = (128.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)
Wire = list[tuple[str, bytes]]  # stream, record


def configured(mode: str) -> PlannerConfig:
    """Both loops run in every second tick, 18 times as often as by default."""
    return planner_config(
        {
            "mode": mode,
            "optimization_target": "sla",
            "capacity_policy": "queue_aware",
            "enable_load_scaling": True,
            "throughput_adjustment_interval_seconds": 2 * INTERVAL_S,
            "ttft_ms": 1500,
            "itl_ms": 50,
            "max_gpu_budget": -1,
            "advisory": True,
        }
    )


@dataclass(frozen=True)
class Fleet:
    """What the engines of one DGD, its frontend and its inventory send; `seed` tells fleets apart."""

    config: PlannerConfig
    workers: int
    seed: int = 0

    def interval(self, index: int, rate: int = FASTEST, flush_ms: int = FLUSH_MS) -> Wire:
        """Everything of the 5 s before tick `index` + 1, as it is on the wire; `rate` FPMs/s of each engine."""
        began = START + index * INTERVAL_S
        out = [self._inventory(began), *(self._window(began + i * WINDOW_S) for i in range(int(INTERVAL_S / WINDOW_S)))]
        for start_ms in range(0, int(1000 * INTERVAL_S), flush_ms):
            out += self._batches(began, range(start_ms, start_ms + flush_ms), rate)
        return out

    def _batches(self, began: float, flush: range, rate: int) -> Wire:
        """What one flush sends. Engines are out of step: each has its own moment between two FPMs."""
        out: Wire = []
        step_ms, counted = 1000 // rate, int(FASTEST * (began - START))
        for role in self.config.roles:
            items = []
            for i in range(self._of_role()):
                offset = (13 * i + 7 * self.seed) % step_ms
                step = max(0, -(-(flush.start - offset) // step_ms))
                for at in range(offset + step * step_ms, flush.stop, step_ms):
                    counter = 1 + counted + at // step_ms
                    payload = encode_fpm(self._busy(role, i, counter))
                    items.append(FpmItem(began + at / 1000, 1000 + i, counter, payload))
            if items:
                received = began + flush.stop / 1000
                out.append(
                    ("fpm", encode(FpmBatch(dgd=DGD, role=role, source="bench", received_at=received, items=items)))
                )
        return out

    def _of_role(self) -> int:
        return self.workers // len(self.config.roles)

    def _busy(self, role: Role, i: int, counter: int) -> Fpm:
        """A batch of changing size; a wall time up to 10 % up or down: without noise no bend is looked for."""
        k = i + counter + self.seed
        n, prompt, noise = 1 + k % 24, 100 + 37 * (k % 40), 0.9 + 0.02 * (31 * k % 11)
        worker, waits = self._name(role, i), k % 3
        if role == "prefill":
            wall, queue = noise * prefill_s(prompt), (waits, 900 * waits)
            return fpm(worker, counter, wall=wall, prefill=(1, prompt), queued_prefill=queue)
        if role == "decode" or k % 4:
            wall, queue = noise * decode_s(n, 900 * n), (waits // 2, 900 * (waits // 2))
            return fpm(worker, counter, wall=wall, decode=(n, 900 * n), queued_decode=queue)
        return fpm(worker, counter, wall=noise * mixed_s(prompt, 900 * n), prefill=(1, prompt), decode=(n, 900 * n))

    def _name(self, role: Role, i: int) -> str:
        return str(7_587_000_000_000_000_000 + 10_000 * self.config.roles.index(role) + i)

    def _inventory(self, at: float) -> tuple[str, bytes]:
        n = self._of_role()
        roles = {
            role: RoleInventory(
                ready=n, gpus_per_replica=1, capabilities=LIMITS, workers=[self._name(role, i) for i in range(n)]
            )
            for role in self.config.roles
        }
        return "inventory", encode(WorkerInventory(dgd=DGD, source="bench", observed_at=at, roles=roles))

    def _window(self, start: float) -> tuple[str, bytes]:
        n = self.workers
        counts = [n // 8, n // 4, n // 4, n // 4, n // 8, 0, 0]
        isl = Distribution(count=sum(counts), mean=1000.0 + self.seed, bounds=list(BOUNDS), counts=counts)
        osl = Distribution(count=n, mean=180.0)
        window = TrafficWindow(
            dgd=DGD,
            window_id=f"bench:{start:.3f}",
            source="bench",
            start=start,
            end=start + WINDOW_S,
            requests=n,
            isl=isl,
            osl=osl,
            kv_hit_rate=0.3,
            ttft_s=Distribution(count=n, mean=0.3),
            itl_s=Distribution(count=n, mean=0.02),
        )
        return "traffic", encode(window)


@dataclass
class Cost:
    """CPU seconds of one interval of one DGD."""

    handle: float = 0.0
    tick: float = 0.0
    encode: float = 0.0
    snapshot: float = 0.0
    both_loops: bool = False

    @property
    def ticking(self) -> float:
        """What happens when a tick is due."""
        return self.tick + self.encode + self.snapshot

    @property
    def total(self) -> float:
        return self.handle + self.ticking


def spend(planner: Planner, wire: Wire, now: float) -> Cost:
    """One interval: take in what came, and tick at `now`."""
    began = process_time()
    for stream, data in wire:
        planner.handle(decode(stream, data), now)
    handled = process_time()
    records = planner.tick(now)
    ticked = process_time()
    for record in records:
        encode(record)
    encoded = process_time()
    encode(snapshot_record(planner, {"fpm": 1, "traffic": 1}, now))
    saved = process_time()
    report = records[-1]
    return Cost(handled - began, ticked - handled, encoded - ticked, saved - encoded, len(report.loops) == 2)


def measured(mode: str) -> dict[int, Cost]:
    """By workers, the median cost of each part of an interval whose tick runs both loops; the fleets take turns."""
    config = configured(mode)
    planners = {workers: (Planner(config, DGD, start=START), Fleet(config, workers)) for workers in SIZES}
    costs: dict[int, list[Cost]] = {workers: [] for workers in SIZES}
    for i in range(WARM + MEASURED):
        for workers, (planner, fleet) in planners.items():
            costs[workers].append(spend(planner, fleet.interval(i), START + (i + 1) * INTERVAL_S))
    for workers, (planner, _) in planners.items():
        seen = planner.fpm.counters.seen
        assert seen == (WARM + MEASURED) * workers * int(FASTEST * INTERVAL_S), seen
    return {workers: typical([c for c in of_one[WARM:] if c.both_loops]) for workers, of_one in costs.items()}


def typical(costs: list[Cost]) -> Cost:
    return Cost(*(median(getattr(c, name) for c in costs) for name in PARTS))


def shown(cost: Cost) -> str:
    parts = {"tick": cost.tick, "snapshot": cost.snapshot, "encoding": cost.encode, "together": cost.ticking}
    return ", ".join(f"{name} {1000 * s:.2f} ms" for name, s in parts.items()) + f"; FPMs {1000 * cost.handle:.2f} ms"


def compare(mode: str) -> None:
    found = measured(mode)
    for workers, cost in found.items():
        print(f"{mode:6} {workers:3d} workers: {shown(cost)}")
    few, many = found.values()
    print(
        f"{mode}: a tick with {SIZES[1]} workers against {SIZES[0]}: {many.ticking / few.ticking:.2f} "
        f"(without snapshot and encoding {many.tick / few.tick:.2f}; wanted: below 5)"
    )


def resident() -> int:
    """Bytes of this process in memory; 0 where /proc does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def share(costs: list[Cost]) -> str:
    """Of the interval, on one core."""
    busy = sum(cost.total for cost in costs)
    parts = {name: sum(getattr(c, name) for c in costs) for name in PARTS}
    return f"{busy / INTERVAL_S:.2f}, CPU s {busy:.2f} (" + ", ".join(f"{n} {s:.2f}" for n, s in parts.items()) + ")"


def crowd(mode: str, count: int) -> None:
    """`count` DGDs of 8 workers: for each flow one interval that ends with a tick of one loop, and one with both."""
    config = configured(mode)
    fleets = [Fleet(config, SIZES[0], seed) for seed in range(VARIANTS)]
    before = resident()
    planners = [Planner(config, DGD, start=START) for _ in range(count)]
    print(
        f"{mode}: share of {INTERVAL_S:g} s that {count} DGDs of {SIZES[0]} workers keep one core busy, wanted below 1"
    )
    for index, (rate, flush_ms) in enumerate([FLOWS[0]] * WARM + [flow for flow in FLOWS for _ in range(2)]):
        wires, now = [fleet.interval(index, rate, flush_ms) for fleet in fleets], START + (index + 1) * INTERVAL_S
        costs = [spend(planner, wires[i % VARIANTS], now) for i, planner in enumerate(planners)]
        if index >= WARM:
            loops = "both loops" if costs[0].both_loops else "load loop "
            print(f"  {rate:2d} FPM/s of an engine, batches of {flush_ms:3d} ms, {loops}: {share(costs)}", flush=True)
    held = resident() - before
    state = snapshot_record(planners[0], {}, 0.0).state
    sizes = {"in memory": held / count, "snapshot": len(planners[0].snapshot()), "compressed": len(state)}
    print(f"{mode}, KiB a DGD: " + ", ".join(f"{name} {size / 1024:.1f}" for name, size in sizes.items() if size > 0))


def main() -> None:
    for mode in ("disagg", "agg"):
        compare(mode)
    crowd("disagg", int(sys.argv[1]) if len(sys.argv) > 1 else 1000)


if __name__ == "__main__":
    main()
