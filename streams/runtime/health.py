"""Is this process alive, and is it ready? For Kubernetes, or whoever else restarts what hangs.

Alive means progress: the event loop runs, and no DGD's tick is long overdue while the bus is there. A bus that is away
is no reason to restart a planner. Ready means that it takes part: bus connected, lease held, its DGDs recovered.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.streams.runtime.metrics import PREFIX
from headrace.streams.runtime.service import Service

LOOK_S = 0.5
STUCK_S = 30.0  # without a look: the event loop hangs
OVERDUE_S = 60.0  # beyond its due time, and three times its interval: the tick does not come
MOST_NAMED = 20  # DGDs in an answer

Answer = tuple[int, str, bytes]  # status, content type, body


@dataclass(frozen=True, slots=True)
class Status:
    """One look at the service."""

    looked_at: float = 0.0  # monotonic, s
    connected: bool = False
    lease_held: bool = False
    partitions: list[int] = field(default_factory=list)
    dgds: int = 0
    recovering: list[str] = field(default_factory=list)
    failing: dict[str, str] = field(default_factory=dict)
    overdue: list[str] = field(default_factory=list)
    moved_in: int = 0
    moved_out: int = 0
    consumers: int = 0


class Health(Collector):
    """Looks at the service in its loop; answers from another thread, so that a loop that hangs is told of."""

    def __init__(self, service: Service, now: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._now = now
        self._late_since: dict[str, float] = {}
        self._connected_since: float | None = None
        self.status = Status(looked_at=now())

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.look()
            try:
                async with asyncio.timeout(LOOK_S):
                    await stop.wait()
            except TimeoutError:
                continue

    def look(self) -> None:
        """Take the status down."""
        s, now = self._service, self._now()
        connected = s.connected
        units = s.host.units
        recovering = [dgd for dgd in units if dgd not in s.nodes or not s.nodes[dgd].planning]
        self.status = Status(
            looked_at=now,
            connected=connected,
            lease_held=s.leases.held,
            partitions=s.leases.owned,
            dgds=len(units),
            recovering=sorted(recovering),
            failing={dgd: unit.failure for dgd, unit in units.items() if unit.failure is not None},
            overdue=sorted(self._overdue(now, connected)),
            moved_in=s.leases.moved_in,
            moved_out=s.leases.moved_out,
            consumers=s.consumers,
        )

    def _overdue(self, now: float, connected: bool) -> Iterator[str]:
        """DGDs whose tick has been late for too long, with the bus there all the while."""
        late = dict(self._service.late_ticks()) if connected else {}
        self._late_since = {dgd: self._late_since.get(dgd, now) for dgd in late}
        for dgd, since in self._late_since.items():
            if now - since > max(OVERDUE_S, 3 * late[dgd]):
                yield dgd

    # -- answers, from any thread -----------------------------------------------------------------------------------

    def alive(self) -> Answer:
        """200 while there is progress, else 503 and why."""
        status = self.status
        silent_s = self._now() - status.looked_at
        problems = [f"the event loop has been silent for {silent_s:.0f} s"] if silent_s > STUCK_S else []
        problems += [f"{dgd}: its tick is overdue" for dgd in status.overdue[:MOST_NAMED]]
        return _answer(not problems, {"alive": not problems, "problems": problems})

    def ready(self) -> Answer:
        """200 when it takes part and what it owns is planned, else 503."""
        s = self.status
        fresh = self._now() - s.looked_at <= STUCK_S
        ready = fresh and s.connected and s.lease_held and not s.recovering
        shown = {k: v for k, v in asdict(s).items() if k != "looked_at"}
        shown["recovering"] = s.recovering[:MOST_NAMED]
        shown["failing"] = dict(sorted(s.failing.items())[:MOST_NAMED])
        return _answer(ready, {"ready": ready, **shown})

    def collect(self) -> Iterator[Metric]:
        """The same as Prometheus metrics."""
        s = self.status
        gauges = {
            "bus_connected": ("1 while the bus is connected", s.connected),
            "lease_held": ("1 while our lease is renewed in time", s.lease_held),
            "shard_partitions": ("Partitions that this process owns", len(s.partitions)),
            "shard_dgds": ("DGDs that this process plans", s.dgds),
            "shard_dgds_recovering": ("DGDs that are taken over at this moment", len(s.recovering)),
            "shard_dgds_failing": ("DGDs whose planner has failed and waits for its next try", len(s.failing)),
            "shard_dgds_overdue": ("DGDs whose tick is long overdue", len(s.overdue)),
            "shard_consumers": ("Ordered readers that are open for the planners", s.consumers),
        }
        for name, (what, value) in gauges.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", what, value=float(value))
        moves = CounterMetricFamily(f"{PREFIX}_shard_moves", "Partitions taken and given up", labels=["direction"])
        moves.add_metric(["in"], s.moved_in)
        moves.add_metric(["out"], s.moved_out)
        yield moves


def _answer(good: bool, body: dict[str, object]) -> Answer:
    return 200 if good else 503, "application/json", json.dumps(body).encode() + b"\n"
