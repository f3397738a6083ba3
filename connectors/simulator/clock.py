"""Simulated time in real time: an origin, and a speed at which it runs."""

import math
import time
from collections.abc import Callable

from headrace.schemas.errors import ConfigError


class SimClock:
    """now = origin + (wall - wall at start) * speed, in seconds; stands at the origin until it is started."""

    def __init__(self, origin_s: float, speed: float = 1.0, wall: Callable[[], float] = time.monotonic) -> None:
        if not 0.0 < speed < math.inf:
            raise ConfigError(f"simulation speed {speed} must be finite and above zero: 1 is real time")
        self.origin_s = origin_s
        self.speed = speed
        self._wall = wall
        self._started: float | None = None

    def start(self) -> None:
        """Let time run from now on. A second call changes nothing."""
        if self._started is None:
            self._started = self._wall()

    @property
    def elapsed_s(self) -> float:
        """Simulated seconds since the origin."""
        return 0.0 if self._started is None else (self._wall() - self._started) * self.speed

    def now(self) -> float:
        return self.origin_s + self.elapsed_s
