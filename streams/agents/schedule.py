"""When the next tick is due, and which loops it runs: slots on a fixed grid, so that nothing drifts or doubles."""

from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.config import PlannerConfig

EPSILON_S = 1e-6
SET_BACK_S = 60.0  # a clock that has gone back further was set right, and is not waited for


@dataclass(slots=True)
class Schedule:
    """Slots of each loop since `anchor`. A tick that comes late runs once, in the slot it falls into."""

    base_s: float
    intervals: dict[str, float]  # loop -> seconds, each a multiple of base_s
    anchor: float
    tick: int = 0  # index of the last tick's slot; the first tick is due one base interval after the anchor
    last_slot: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, config: PlannerConfig, anchor: float) -> "Schedule":
        intervals = {}
        if config.load_loop:
            intervals["load"] = config.load_adjustment_interval_seconds
        if config.throughput_loop:
            intervals["throughput"] = config.throughput_adjustment_interval_seconds
        return cls(config.base_tick_seconds, intervals, anchor)

    @property
    def next_at(self) -> float:
        return self.anchor + (self.tick + 1) * self.base_s

    def due(self, now: float) -> bool:
        """Is a tick due? After the clock went back it is not, until the clock has caught up."""
        return now >= self.next_at - EPSILON_S

    def resume(self, now: float) -> bool:
        """If the clock was set back, go on from what it says, every loop in its next slot; false if it was not."""
        if now >= self.next_at - self.base_s - SET_BACK_S:
            return False
        self.tick = max(0, self._slot(now, self.base_s))
        self.last_slot = {loop: max(0, self._slot(now, seconds)) for loop, seconds in self.intervals.items()}
        return True

    def _slot(self, now: float, seconds: float) -> int:
        return int((now - self.anchor + EPSILON_S) // seconds)

    def begin(self, now: float) -> tuple[float, list[str]]:
        """Enter the tick that is due at `now`: the time it was due, and the loops that run in it."""
        self.tick = max(self.tick + 1, self._slot(now, self.base_s))
        due_at = self.anchor + self.tick * self.base_s
        loops = []
        for loop, seconds in self.intervals.items():
            mine = self._slot(max(now, due_at), seconds)
            if mine > self.last_slot.get(loop, 0):
                self.last_slot[loop] = mine
                loops.append(loop)
        return due_at, loops

    def reconfigured(self, config: PlannerConfig) -> "Schedule":
        """The same clock under other intervals: each loop is next due in its next slot."""
        new = Schedule.of(config, self.anchor)
        at = self.anchor + self.tick * self.base_s
        new.tick = new._slot(at, new.base_s)
        new.last_slot = {loop: new._slot(at, seconds) for loop, seconds in new.intervals.items()}
        return new

    def to_state(self) -> dict[str, Any]:
        return {
            "base_s": self.base_s,
            "intervals": self.intervals,
            "anchor": self.anchor,
            "tick": self.tick,
            "last_slot": self.last_slot,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Schedule":
        """Raises KeyError, TypeError or ValueError where `state` is not one of `to_state`."""
        return cls(
            float(state["base_s"]),
            {loop: float(seconds) for loop, seconds in state["intervals"].items()},
            float(state["anchor"]),
            int(state["tick"]),
            {loop: int(slot) for loop, slot in state["last_slot"].items()},
        )
