"""Failover on NATS: from kill -9 of a planner to the first snapshot of the next owner, with default settings.

Two processes share 8 DGDs, one is killed at a random moment, and the other takes over what it had. Measured is until
the last of them has an owner that can decide: it has read the log and stored its new epoch. The same for SIGTERM.

    PYTHONPATH=tests/support python tests/bench/bench_failover.py [TRIALS]
"""

import asyncio
import random
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import Process
from pathlib import Path

from fleet import Fleet, fleet_on

from headrace.schemas.state import PlannerState
from headrace.schemas.streams import STATE

TRIALS = 30
LIMIT_S = 5.0  # that a kill may cost


async def owners(fleet: Fleet, processes: dict[int, Process]) -> dict[int, list[str]]:
    """Process id -> its DGDs, once both have some and every DGD has an owner; from `headrace shards`."""
    from headrace.streams.cli.shards_show import _dgd, _known, _view, overview

    while True:
        view = await _view(fleet.records.bus)
        looks = [await _dgd(fleet.records.bus, dgd, asyncio.Semaphore(1)) for dgd in await _known(fleet.records.bus)]
        found = overview(view, looks, 64, time.time())
        pids = {m["member"]: m["pid"] for m in found["members"]}
        having: dict[int, list[str]] = {pid: [] for pid in processes}
        for row in found["dgds"]:
            if row["owner_alive"] and row["epoch"] is not None and pids[row["owner"]] in having:
                having[pids[row["owner"]]].append(row["dgd"])
        sizes = sorted(map(len, having.values()))
        if sum(sizes) == len(fleet.dgds) and sizes[-1] - sizes[0] <= 2:
            return having
        await asyncio.sleep(0.2)


async def taken_over(fleet: Fleet, dgds: list[str], end: "asyncio.Task[float]") -> float:
    """Seconds from the end of a process until all its DGDs have a snapshot of a later epoch."""
    epochs = {}
    for dgd in dgds:
        last = await fleet.records.last(STATE, dgd)
        assert last is not None
        assert isinstance(last[0], PlannerState)
        epochs[dgd] = last[0].epoch
    reader = await fleet.records.read(STATE)
    ended_at, newest = await end, 0.0
    while epochs:
        for record, message in await reader.next(timeout=60):
            assert isinstance(record, PlannerState)
            if record.epoch > epochs.get(record.dgd, record.epoch):
                del epochs[record.dgd]
                newest = message.stored_at
    await reader.close()
    return newest - ended_at


async def trial(fleet: Fleet, config: Path, processes: dict[int, Process], *, kill: bool) -> float:
    having = await owners(fleet, processes)
    pid = random.choice([pid for pid, dgds in having.items() if dgds])
    await asyncio.sleep(random.uniform(0.0, 1.0))

    async def end() -> float:
        process = processes.pop(pid)
        now = time.time()
        process.kill() if kill else process.terminate()
        return now

    taken = await taken_over(fleet, having[pid], asyncio.create_task(_later(end)))
    started = await fleet.start(config)
    processes[started.pid] = started
    return taken


async def _later(end: object) -> float:
    await asyncio.sleep(0.1)  # so that the reader is there
    at: float = await end()  # type: ignore[operator]
    return at


async def main(trials: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with fleet_on(Path(folder), dgds=8, speed=1.0) as fleet:
            config = fleet.configuration("planner")
            started = [await fleet.start(config) for _ in range(2)]
            processes = {p.pid: p for p in started}
            try:
                for kill, count in ((True, trials), (False, max(1, trials // 3))):
                    took = [await trial(fleet, config, processes, kill=kill) for _ in range(count)]
                    what = "kill -9" if kill else "SIGTERM"
                    print(
                        f"{what}: {count} times, until all DGDs of the process are planned again: "
                        f"median {statistics.median(took):.2f} s, worst {max(took):.2f} s, best {min(took):.2f} s"
                    )
                    if kill and max(took) > LIMIT_S:
                        print(f"above {LIMIT_S:g} s: {sum(t > LIMIT_S for t in took)} of {count}")
            finally:
                for process in processes.values():
                    process.kill()
                    await process.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS))
