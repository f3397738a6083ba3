"""Three processes over 64 DGDs that are killed, restarted, paused and cut off: counts, not impressions.

The short forms run with `make test`, the long ones with `make soak`. Each prints what it has counted.
"""

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from pathlib import Path

import pytest
from fleet import Fleet, examine, fleet_on
from nats_support import Proxy, kill_server

SOAK = os.environ.get("HEADRACE_SOAK", "") not in ("", "0")
LEASE_S = 3.0  # the default
LATE_S = 180.0  # patience for a loaded machine
UNEXPECTED = ("the planner has failed", "never retrieved", "cannot be read for")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * 3600 if SOAK else 600)]


class Site:
    """Three planner processes, of which one may be behind a proxy."""

    def __init__(self, fleet: Fleet, proxy_url: str | None = None) -> None:
        self.fleet = fleet
        self.configs = [fleet.configuration(name, proxy_url if name == "c" else None) for name in "abc"]
        self.processes: list[Process] = []

    async def __aenter__(self) -> "Site":
        self.processes = [await self.fleet.start(config) for config in self.configs]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.wait()
        if kind is not None:
            print(self.fleet.log.read_text()[-5000:])

    async def all_planned(self) -> None:
        """Every DGD has had a tick from now on."""
        await self.fleet.ticked(len(self.fleet.dgds), time.time(), LATE_S)

    async def kill(self, i: int) -> None:
        self.processes[i].kill()
        await self.processes[i].wait()

    async def stop(self, i: int, *, may_be_young: bool = False) -> None:
        """SIGTERM ends a planner in peace; one that has not begun yet, at once."""
        self.processes[i].terminate()
        code = await self.processes[i].wait()
        assert code == 0 or (may_be_young and code == -signal.SIGTERM), self.fleet.log.read_text()[-3000:]

    async def start(self, i: int) -> None:
        self.processes[i] = await self.fleet.start(self.configs[i])

    async def end(self, what: str) -> None:
        """Everything is planned and counted, or it is said what is not."""
        await self.all_planned()
        await self.fleet.settled(LATE_S)
        for i in range(3):
            await self.stop(i)
        found = await examine(self.fleet)
        print(f"\n{what}: {found}")
        assert found.wrong == []
        assert sum(a.decisions for a in found.audits.values()) > len(self.fleet.dgds)
        log = self.fleet.log.read_text()
        assert [words for words in UNEXPECTED if words in log] == []


async def test_kills_and_restarts_leave_no_gap_no_repeat_and_nothing_uncounted(tmp_path: Path) -> None:
    times, hour_s = (30, 3600.0) if SOAK else (2, 0.0)
    async with fleet_on(tmp_path, speed=6.0 if SOAK else 5.0) as fleet, Site(fleet) as site:
        await site.all_planned()
        fleet.slow_s = 2.0
        began = fleet.clock.now()
        moves = [True] * times + [False] * times
        fleet.rng.shuffle(moves)
        for killed in moves:
            i = fleet.rng.randrange(3)
            await (site.kill(i) if killed else site.stop(i, may_be_young=True))
            await asyncio.sleep(fleet.rng.uniform(0.0, 1.5 * LEASE_S))
            await site.start(i)
            await asyncio.sleep(fleet.rng.uniform(0.0, 1.5 * LEASE_S))
        await fleet.clock.sleep_until(began + hour_s, asyncio.Event())
        span_s = fleet.clock.now() - began
        fleet.slow_s = 0.0
        await site.end(
            f"{times} kill -9 and {times} restarts in {span_s:.0f} simulated seconds, scaling takes up to 2 s, "
            f"{fleet.refused_calls} decisions were overtaken before they were acted on"
        )


async def test_restarts_of_the_server_move_nothing_and_lose_nothing(tmp_path: Path) -> None:
    times = 20 if SOAK else 2
    async with fleet_on(tmp_path, seed=2) as fleet, Site(fleet) as site:
        await site.all_planned()
        for _ in range(times):
            await asyncio.to_thread(kill_server, fleet.server)
            await asyncio.sleep(fleet.rng.uniform(0.0, 1.0))
            await asyncio.to_thread(fleet.server.start)
            await asyncio.sleep(fleet.rng.uniform(1.0, 4.0))
        await site.end(f"{times} restarts of the server")


async def test_a_process_that_is_cut_off_for_longer_than_its_lease_decides_nothing_that_counts(tmp_path: Path) -> None:
    times = 10 if SOAK else 1
    async with fleet_on(tmp_path, seed=3) as fleet, Proxy(fleet.server.port) as proxy, Site(fleet, proxy.url) as site:
        await site.all_planned()
        for _ in range(times):
            proxy.refuse = True
            proxy.cut()
            await asyncio.sleep(2 * LEASE_S)
            await site.all_planned()
            proxy.refuse = False
            await asyncio.sleep(LEASE_S)
        await site.end(f"{times} cuts of one process for {2 * LEASE_S:g} s and more")


async def test_a_process_that_slept_decides_nothing_that_counts(tmp_path: Path) -> None:
    times, sleep_s = (5, 60.0) if SOAK else (1, 2.5 * LEASE_S)
    async with fleet_on(tmp_path, seed=4) as fleet, Site(fleet) as site:
        await site.all_planned()
        for _ in range(times):
            sleeper = site.processes[fleet.rng.randrange(3)]
            sleeper.send_signal(signal.SIGSTOP)
            await asyncio.sleep(sleep_s)
            await site.all_planned()
            sleeper.send_signal(signal.SIGCONT)
            await asyncio.sleep(LEASE_S)
            assert sleeper.returncode is None
        await site.end(f"{times} times SIGSTOP for {sleep_s:g} s")
