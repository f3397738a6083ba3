"""The simulation's agenda: what happens when, in order of time, then of scheduling."""

from collections.abc import Callable
from heapq import heappop, heappush, heapreplace

Callback = Callable[[float], float | None]  # called at its time; returns when it wants to be called again, or None


class Agenda:
    """A heap of (time, serial, callback). Times are simulated seconds since the trace began."""

    __slots__ = ("_serial", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Callback]] = []
        self._serial = 0

    def at(self, time: float, callback: Callback) -> None:
        """Call `callback(time)` then. `time` must not be before the event that is running."""
        self._serial += 1
        heappush(self.heap, (time, self._serial, callback))

    def run_next(self) -> None:
        """Run the earliest event."""
        heap = self.heap
        entry = heap[0]  # stays first while it runs: whatever it schedules is not earlier and has a larger serial
        again = entry[2](entry[0])
        if again is None:
            heappop(heap)
        else:
            self._serial += 1
            heapreplace(heap, (again, self._serial, entry[2]))
