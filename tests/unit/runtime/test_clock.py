"""The clocks of the shell."""

import asyncio

import pytest

from headrace.streams.cli.run_service import clock_of
from headrace.streams.runtime import clock as module
from headrace.streams.runtime.clock import ScaledClock, VirtualClock
from headrace.streams.settings import ClockSettings


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The wall clock, to be set."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    return now


def test_with_the_defaults_it_is_the_wall_clock(wall: list[float]) -> None:
    assert ScaledClock().now() == clock_of(ClockSettings()).now() == 1000.0
    assert ScaledClock().of_wall(1234.5) == 1234.5


def test_a_scaled_clock_runs_as_many_times_as_fast_from_its_origin(wall: list[float]) -> None:
    clock = ScaledClock(speed=20.0, origin=5000.0, wall_origin=990.0)
    assert clock.now() == 5200.0
    wall[0] += 1.0
    assert clock.now() == 5220.0
    assert clock.of_wall(989.0) == 4980.0


@pytest.mark.parametrize(
    ("settings", "now"),
    [
        (ClockSettings(speed=10.0, origin=990.0), 1090.0),  # from the origin on the wall
        (ClockSettings(speed=10.0, origin=0.0, wall_origin=990.0), 100.0),
        (ClockSettings(speed=10.0, wall_origin=990.0), 1090.0),
    ],
)
def test_a_configured_clock_needs_one_of_both_origins(wall: list[float], settings: ClockSettings, now: float) -> None:
    assert clock_of(settings).now() == now


async def test_it_sleeps_until_its_own_time_has_come() -> None:
    clock = ScaledClock(speed=1000.0, origin=0.0, wall_origin=ScaledClock().now())
    due = clock.now() + 50.0
    await clock.sleep_until(due, asyncio.Event())
    assert clock.now() >= due


async def test_a_time_that_has_passed_is_not_waited_for() -> None:
    await ScaledClock().sleep_until(0.0, asyncio.Event())


async def test_a_clock_that_is_set_back_while_one_sleeps_is_not_waited_for(wall: list[float]) -> None:
    clock = ScaledClock()
    sleeping = asyncio.create_task(clock.sleep_until(1000.1, asyncio.Event()))
    await asyncio.sleep(0)
    wall[0] = 10.0
    await asyncio.wait_for(sleeping, 20)
    assert clock.now() == 10.0


async def test_a_stop_wakes_a_sleeper() -> None:
    stop = asyncio.Event()
    sleeping = asyncio.create_task(ScaledClock().sleep_until(1e12, stop))
    await asyncio.sleep(0)
    stop.set()
    await asyncio.wait_for(sleeping, 10)


async def test_a_virtual_clock_jumps_and_never_back() -> None:
    clock = VirtualClock(5.0)
    await clock.sleep_until(9.0, asyncio.Event())
    assert clock.now() == 9.0
    await clock.sleep_until(3.0, asyncio.Event())
    assert clock.now() == 9.0
    assert clock.of_wall(7.0) == 7.0
