"""Clocks of the shell. The pure part is told the time and never asks."""

import asyncio
import time
from typing import Protocol

SLACK_S = 1.0  # by which two clocks of one machine may part while one waits; more is a clock that was set back


class Clock(Protocol):
    def now(self) -> float:
        """Seconds in the planner's time base."""

    def of_wall(self, wall_s: float) -> float:
        """A time of the broker's wall clock in the planner's time base."""

    async def sleep_until(self, at: float, stop: asyncio.Event) -> None:
        """Wait until `at`, until `stop` is set, or until it shows that the clock was set back meanwhile."""


class ScaledClock:
    """A clock that starts at `origin` when the wall clock shows `wall_origin`, and runs `speed` times as fast.

    With the defaults it is the wall clock itself.
    """

    def __init__(self, speed: float = 1.0, origin: float = 0.0, wall_origin: float = 0.0) -> None:
        self.speed = speed
        self.origin = origin
        self.wall_origin = wall_origin

    def now(self) -> float:
        return self.of_wall(time.time())

    def of_wall(self, wall_s: float) -> float:
        return self.origin + (wall_s - self.wall_origin) * self.speed

    async def sleep_until(self, at: float, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + max(0.0, at - self.now()) / self.speed + SLACK_S
        while not stop.is_set() and loop.time() < give_up:
            wall_left = (at - self.now()) / self.speed
            if wall_left <= 0:
                return
            # An event-loop timer may fire early by its resolution; the loop asks the clock again.
            try:
                async with asyncio.timeout(min(wall_left, give_up - loop.time(), 60.0)):
                    await stop.wait()
            except TimeoutError:
                continue


class VirtualClock:
    """A clock that is set by hand: simulations and replays."""

    def __init__(self, start: float = 0.0) -> None:
        self.at = start

    def now(self) -> float:
        return self.at

    def of_wall(self, wall_s: float) -> float:
        return wall_s  # a virtual broker stamps virtual time

    async def sleep_until(self, at: float, stop: asyncio.Event) -> None:
        self.at = max(self.at, at)
        await asyncio.sleep(0)
