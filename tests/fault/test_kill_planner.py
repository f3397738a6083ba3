"""kill -9 of the planner at random moments of a simulated hour: ids go on, nothing counts twice, nothing stale acts."""

import asyncio
import random
import signal
from pathlib import Path

import pytest
from audit import audit
from deployment import DGD, Deployment, deployment
from fpm_tap import fpm_tap
from planner_process import start_planner

from headrace.schemas.streams import ACKS, DECISIONS, FPM, TICKS, TRAFFIC

KILLS = 20
SPEED = 60.0
HOUR_S = 3600.0


async def new_decision_or(deployed: Deployment, seconds: float) -> None:
    """Wait until the log holds one more decision than now, or for so long."""
    before = await deployed.records.bus.last(DECISIONS, DGD)
    for _ in range(int(seconds / 0.05)):
        await asyncio.sleep(0.05)
        now = await deployed.records.bus.last(DECISIONS, DGD)
        if (now and now.position) != (before and before.position):
            return


@pytest.mark.slow
@pytest.mark.timeout(420)
async def test_twenty_kills_of_the_planner_leave_no_gap_no_repeat_and_no_stale_action(tmp_path: Path) -> None:
    rng = random.Random(20)
    log = tmp_path / "planner.log"
    async with (
        deployment(tmp_path, speed=SPEED) as deployed,
        fpm_tap(await deployed.records.read(FPM, DGD, after=0)) as tap,
    ):
        killed_before_first_tick = 0
        for kill in range(KILLS):
            ticks = await deployed.records.bus.last(TICKS, DGD)
            planner = await start_planner(deployed.config, log)
            # Half of the kills fall at any moment, half right behind a decision: between it and what follows it.
            if kill % 2:
                await new_decision_or(deployed, 6.0)
                await asyncio.sleep(rng.uniform(0.0, 0.02))
            else:
                await asyncio.sleep(rng.uniform(0.6, 5.0))
            assert planner.returncode is None, log.read_text()
            planner.send_signal(signal.SIGKILL)
            await planner.wait()
            after = await deployed.records.bus.last(TICKS, DGD)
            killed_before_first_tick += (ticks and ticks.position) == (after and after.position)
        ticks = await deployed.records.bus.last(TICKS, DGD)
        planner = await start_planner(deployed.config, log)
        reader = await deployed.records.read(TICKS, DGD, after=ticks.position if ticks else 0)
        assert await reader.next(timeout=60.0)
        await reader.close()
        await asyncio.sleep(6.0)
        await deployed.clock.sleep_until(deployed.clock.origin + HOUR_S, asyncio.Event())
        planner.terminate()
        assert await planner.wait() == 0, log.read_text()
        decisions, acks, ticks_all = [await deployed.read_all(s) for s in (DECISIONS, ACKS, TICKS)]
        windows = await deployed.read_all(TRAFFIC)
        last = ticks_all[-1]
        found = audit(decisions, acks, deployed.scaler.calls, ticks_all)
        position = last.positions["fpm"]
        in_log = await tap.different(until=position)
        counters = last.counters
        ids = {w.window_id for w in windows}
        span_s = last.at - deployed.clock.origin
        print(
            f"\n{span_s:.0f} simulated seconds, {KILLS} kills, {killed_before_first_tick} of them before a first tick: "
            f"{found}; FPMs on the log {in_log}, counted {counters['fpm_seen']}, repeated {counters['fpm_duplicate']}; "
            f"{len(windows)} traffic windows, {len(ids)} different"
        )
        assert found.clean
        assert found.decisions >= 5
        assert last.counters["fpm_seen"] == in_log
        assert log.read_text().count("planning in epoch") <= last.epoch <= KILLS + 1
