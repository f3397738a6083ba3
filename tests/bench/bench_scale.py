"""What a tick costs with everything on: with 256 workers against 8, and for 1,000 DGDs of 8 workers on one core.

Everything on: both loops due, queue-aware capacity, forecasts, traffic windows, an inventory that names its workers, and
a busy FPM of every engine every 50 ms, in the batches of 20 ms that a source makes of them, decoded from the wire. To a
tick belongs what a node then does: the snapshot, compressed, and the encoding of the records. Times are CPU seconds.

python tests/bench/bench_scale.py [DGDs]
"""

import gc
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
STEP_MS = 50  # an iteration of every engine: the default ITL target
FLUSH_MS = 20  # of a source
FLUSHES = int(1000 * INTERVAL_S) // FLUSH_MS
PASSES = int(1000 * INTERVAL_S) // STEP_MS  # iterations of an engine in an interval
WARM = 8  # intervals until all is learned and both loops have run
MEASURED = 24
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

    def interval(self, index: int) -> Wire:
        """Everything of the 5 s before tick `index` + 1, as it is on the wire, in the order of its time."""
        began = START + index * INTERVAL_S
        out = [self._inventory(began), *(self._window(began + i * WINDOW_S) for i in range(int(INTERVAL_S / WINDOW_S)))]
        for flush in range(FLUSHES):
            out += self._batches(began, flush * FLUSH_MS, index * PASSES)
        return out

    def _batches(self, began: float, flush_ms: int, passes: int) -> Wire:
        """What one flush sends. Engines are out of step: each has its own moment within the 50 ms."""
        out: Wire = []
        for role in self.config.roles:
            items = []
            for i in range(self._of_role()):
                offset = (13 * i + 7 * self.seed) % STEP_MS
                step = max(0, -(-(flush_ms - offset) // STEP_MS))
                at = offset + step * STEP_MS
                if at < flush_ms + FLUSH_MS:
                    counter = 1 + passes + step
                    payload = encode_fpm(self._busy(role, i, counter))
                    items.append(FpmItem(began + at / 1000, 1000 + i, counter, payload))
            if items:
                received = began + (flush_ms + FLUSH_MS) / 1000
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


def measured(mode: str, workers: int) -> Cost:
    """The median cost of each part of an interval whose tick runs both loops."""
    config = configured(mode)
    planner, fleet = Planner(config, DGD, start=START), Fleet(config, workers)
    costs = [spend(planner, fleet.interval(i), START + (i + 1) * INTERVAL_S) for i in range(WARM + MEASURED)]
    full = [cost for cost in costs[WARM:] if cost.both_loops]
    seen = planner.fpm.counters.seen
    assert seen == (WARM + MEASURED) * workers * PASSES, seen
    return Cost(*(median(getattr(c, name) for c in full) for name in ("handle", "tick", "encode", "snapshot")))


def shown(cost: Cost) -> str:
    parts = {"tick": cost.tick, "snapshot": cost.snapshot, "encoding": cost.encode, "together": cost.ticking}
    return ", ".join(f"{name} {1000 * s:.2f} ms" for name, s in parts.items()) + f"; FPMs {1000 * cost.handle:.2f} ms"


def compare(mode: str) -> None:
    small, large = measured(mode, 8), measured(mode, 256)
    print(f"{mode:6}   8 workers: {shown(small)}")
    print(f"{mode:6} 256 workers: {shown(large)}")
    print(
        f"{mode}: a tick with 256 workers against 8: {large.ticking / small.ticking:.2f} "
        f"(without snapshot and encoding {large.tick / small.tick:.2f}; wanted: below 5)"
    )


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def share(costs: list[Cost]) -> str:
    """Of the interval, on one core."""
    busy = sum(cost.total for cost in costs)
    parts = {name: sum(getattr(c, name) for c in costs) for name in ("handle", "tick", "encode", "snapshot")}
    return (
        f"{'both loops' if costs[0].both_loops else 'load loop alone'}: {busy:.2f} CPU s in {INTERVAL_S:g} s, share "
        f"{busy / INTERVAL_S:.2f} (wanted: below 1); " + ", ".join(f"{n} {s:.2f}" for n, s in parts.items())
    )


def crowd(mode: str, count: int) -> None:
    """`count` DGDs of 8 workers, two intervals after they have learned: one tick with the load loop, one with both."""
    config = configured(mode)
    fleets = [Fleet(config, 8, seed) for seed in range(VARIANTS)]
    before = resident() if Path("/proc/self/statm").exists() else None
    planners = [Planner(config, DGD, start=START) for _ in range(count)]
    for index in range(WARM):
        wires, now = [fleet.interval(index) for fleet in fleets], START + (index + 1) * INTERVAL_S
        costs = [spend(planner, wires[i % VARIANTS], now) for i, planner in enumerate(planners)]
        if index >= WARM - 2:
            print(f"{mode}: {count} DGDs of 8 workers, {share(costs)}")
    gc.collect()
    size, packed = len(planners[0].snapshot()), len(snapshot_record(planners[0], {}, now).state)
    held = "" if before is None else f"{(resident() - before) / count / 1024:.0f} KiB of memory a DGD; "
    print(f"{mode}: {held}state {size / 1024:.1f} KiB a DGD, compressed {packed / 1024:.1f} KiB")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for mode in ("disagg", "agg"):
        compare(mode)
    for mode in ("disagg", "agg"):
        crowd(mode, count)


if __name__ == "__main__":
    main()
