"""The simulated cluster in real time: FPMs as Dynamo's workers publish them, inventory, a frontend to scrape.

It knows no bus: what goes out goes through the callables it is given, what comes in through `apply`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from headrace.connectors.simulator.clock import SimClock
from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.exposition import render
from headrace.connectors.simulator.fpm_sink import EventPlaneSink
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.base import Role
from headrace.schemas.inventory import WorkerInventory

Publish = Callable[[str, bytes], Awaitable[None]]  # subject, payload; the signature of nats-py's `publish`
PublishInventory = Callable[[WorkerInventory], Awaitable[None]]

STEP_S = 0.02  # wall seconds between two looks at the clock
SLICE_S = 0.1  # wall seconds' worth of simulation at a time when it has fallen behind
INVENTORY_S = 1.0  # wall seconds


class LiveCluster:
    """One simulated deployment that runs by itself. `cluster` may be read at any time (counts, frontend, GPU-hours).

    It runs on a clock of its own that starts with `run`, or follows `now` (seconds since the epoch, at about `speed`)
    where several processes share one.
    """

    def __init__(
        self,
        config: SimulatorConfig,
        trace: Trace,
        *,
        speed: float = 1.0,
        seed: int = 0,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.clock = SimClock(config.origin_s, speed)
        self._now = now or self.clock.now
        self.published = 0
        self._sink = EventPlaneSink(config)
        self.cluster = Cluster(config, trace, seed, self._sink)
        self._asked = 0  # rises with every call of `apply`
        self._moved = asyncio.Event()  # pulsed when workers or targets have changed

    @property
    def lag_s(self) -> float:
        """Simulated seconds by which the cluster is behind its clock."""
        return max(0.0, self._elapsed_s() - self.cluster.now)

    def metrics(self) -> str:
        """The frontend's `/metrics`."""
        return render(self.cluster.frontend, self.cluster.config.model)

    async def run(
        self, publish: Publish, publish_inventory: PublishInventory, stop: asyncio.Event, *, until_drained: bool = False
    ) -> None:
        """Run until `stop` is set, or the trace is through if `until_drained`. After a trace the workers idle on."""
        self.clock.start()
        loop = asyncio.get_running_loop()
        seen, inventory_at = -1, loop.time()
        try:
            while not stop.is_set() and not (until_drained and self.cluster.drained):
                await self._catch_up(publish, stop)
                changed = self.cluster.revision != seen
                if changed or loop.time() >= inventory_at:
                    seen, inventory_at = self.cluster.revision, loop.time() + INVENTORY_S
                    await publish_inventory(self.cluster.inventory())
                    if changed:
                        self._pulse()
                await _sleep(STEP_S, stop)
        finally:
            self._asked += 1
            self._pulse()

    async def apply(self, targets: Mapping[Role, int]) -> bool:
        """Ask for replicas, and wait until the cluster shows them and has drained.

        False = a later call has overtaken this one, or the run is over. Raises ConfigError for targets that cannot be.
        """
        self.cluster.set_targets(targets)
        self._asked += 1
        asked = self._asked
        self._pulse()
        while asked == self._asked:
            if self.cluster.targets_reached():
                return True
            await self._moved.wait()
        return False

    async def _catch_up(self, publish: Publish, stop: asyncio.Event) -> None:
        """Simulate up to the clock, in slices, so that a reader of the bus is not hit by one huge burst."""
        target = self._elapsed_s()
        while self.cluster.now < target and not stop.is_set():
            self.cluster.run_until(min(target, self.cluster.now + SLICE_S * self.clock.speed))
            for subject, payload in self._sink.take():
                await publish(subject, payload)
                self.published += 1
            await asyncio.sleep(0)

    def _elapsed_s(self) -> float:
        return self._now() - self.cluster.config.origin_s

    def _pulse(self) -> None:
        """Wake all who wait, once."""
        self._moved.set()
        self._moved = asyncio.Event()


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    """Sleep, but not beyond `stop`."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
