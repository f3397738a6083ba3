"""kill -9 of nats-server under load, ten times: the planner, its sources and the executor go on where they were."""

import asyncio
import random
from pathlib import Path

import pytest
from audit import audit, distinct_fpms
from deployment import deployment
from nats_support import kill_server
from planner_process import start_planner

from headrace.schemas.streams import ACKS, DECISIONS, FPM, TICKS, TRAFFIC

RESTARTS = 10


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_ten_restarts_of_the_server_leave_no_gap_no_repeat_and_no_stale_action(tmp_path: Path) -> None:
    rng = random.Random(10)
    log = tmp_path / "planner.log"
    async with deployment(tmp_path, speed=40.0) as deployed:
        planner = await start_planner(deployed.config, log)
        await asyncio.sleep(4.0)
        for _ in range(RESTARTS):
            await asyncio.sleep(rng.uniform(1.0, 4.0))
            await asyncio.to_thread(kill_server, deployed.server)
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            await asyncio.to_thread(deployed.server.start)
            assert planner.returncode is None, log.read_text()
        await asyncio.sleep(8.0)
        planner.terminate()
        assert await planner.wait() == 0, log.read_text()
        decisions, acks, ticks, windows = [await deployed.read_all(s) for s in (DECISIONS, ACKS, TICKS, TRAFFIC)]
        last = ticks[-1]
        found = audit(decisions, acks, deployed.scaler.calls, ticks)
        in_log = distinct_fpms(batch for batch, at in await deployed.read_pairs(FPM) if at <= last.positions["fpm"])
        doubled = len(windows) - len({w.window_id for w in windows})
        print(
            f"\n{RESTARTS} restarts: {found}; FPMs on the log {in_log}, counted {last.counters['fpm_seen']} once, "
            f"{last.counters['fpm_duplicate']} known as repeated; {len(windows)} traffic windows, {doubled} doubled"
        )
        assert found.clean
        assert found.epochs == 1
        assert found.decisions >= 5
        assert doubled == 0
        assert last.counters["fpm_seen"] == in_log
