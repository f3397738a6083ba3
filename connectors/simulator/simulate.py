"""A whole simulation on a virtual clock: a trace, a cluster, and a policy that is fed, ticked and obeyed."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace.connectors.simulator.bound import lower_bound
from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.executor import SimulatedExecutor
from headrace.connectors.simulator.fpm_sink import BatchSink
from headrace.connectors.simulator.policy import Policy
from headrace.connectors.simulator.report import SimulationReport, summarise
from headrace.connectors.simulator.timeline import Timeline
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.base import Record
from headrace.schemas.decision import Decision
from headrace.schemas.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class Options:
    """How a simulation is run; seconds are simulated.

    `telemetry` false = no FPMs, windows and inventories are made (for policies that read none): about twice as fast.
    """

    seed: int = 0
    telemetry: bool = True
    fpm_batch_s: float = 0.5
    traffic_window_s: float = 5.0
    inventory_s: float = 5.0  # and on every change
    timeline_s: float = 10.0
    tail_s: float = 600.0  # after the last arrival: who is not finished then never is
    bound: bool = True
    progress: Callable[[float], None] | None = None  # share of the trace that is done, 0..1
    tap: Callable[[Record], None] | None = None  # sees every record in either direction, in order


def simulate(trace: Trace, config: SimulatorConfig, policy: Policy, options: Options | None = None) -> SimulationReport:
    """Run a policy over a trace until every request is finished, or `tail_s` after the last arrival.

    Deterministic if the policy is. Raises HeadraceError when the policy's `next_tick_at` does not move on.
    """
    return _Run(trace, config, policy, options or Options()).run()


class _Run:
    def __init__(self, trace: Trace, config: SimulatorConfig, policy: Policy, options: Options) -> None:
        self.options = options
        self.policy = policy
        self.origin_s = config.origin_s
        self.sink = BatchSink(config)
        self.cluster = Cluster(config, trace, options.seed, self.sink if options.telemetry else None)
        self.executor = SimulatedExecutor(self.cluster)
        self.timeline = Timeline(self.cluster)
        self.ends_at = trace.duration_s
        self.seen_revision = -1
        self.due = {"timeline": options.timeline_s}
        if options.telemetry:
            self.due |= {"fpm": options.fpm_batch_s, "traffic": options.traffic_window_s, "inventory": 0.0}

    def run(self) -> SimulationReport:
        while not self._over():
            self._step()
        self.timeline.record()
        bound = lower_bound(self.cluster.trace, self.cluster.config) if self.options.bound else None
        return summarise(
            self.cluster, self.timeline.rows(), decisions=self.executor.carried_out, fpms=self.sink.seen, bound=bound
        )

    def _over(self) -> bool:
        return self.cluster.now >= self.ends_at and (
            self.cluster.drained or self.cluster.now >= self.ends_at + self.options.tail_s
        )

    def _step(self) -> None:
        """Go to the next moment at which something is due, and do it: telemetry first, then the tick that reads it."""
        tick_at = self.policy.next_tick_at
        t = min(self.due.values())
        ticks = tick_at is not None and tick_at - self.origin_s <= t
        if ticks and tick_at is not None:
            t = max(self.cluster.now, tick_at - self.origin_s)
        self.cluster.run_until(t)
        now = self.origin_s + t
        if self.options.telemetry:
            self._give(self._telemetry(t, ticks), now)
        self._give(self.executor.settle(now), now)
        if ticks:
            self._tick(now)
        if self._is_due("timeline", t, self.options.timeline_s):
            self.timeline.record()
            if self.options.progress is not None:
                self.options.progress(min(1.0, t / self.ends_at) if self.ends_at > 0.0 else 1.0)

    def _telemetry(self, t: float, ticks: bool) -> list[Record]:
        options, records = self.options, list[Record]()
        if self._is_due("fpm", t, options.fpm_batch_s) or ticks:
            records += self.sink.take(t)
        if self._is_due("traffic", t, options.traffic_window_s):
            records.append(self.cluster.traffic_window())
        if self._is_due("inventory", t, options.inventory_s) or self.cluster.revision != self.seen_revision:
            self.seen_revision = self.cluster.revision
            records.append(self.cluster.inventory())
        return records

    def _tick(self, now: float) -> None:
        self._take(self.policy.tick(now), now)
        following = self.policy.next_tick_at
        if following is not None and following <= now:
            raise HeadraceError(
                f"policy's next_tick_at is {following} after its tick at {now}: it must lie later, or be None"
            )

    def _give(self, records: Iterable[Record], now: float) -> None:
        for record in records:
            self._tap(record)
            self._take(self.policy.handle(record, now), now)

    def _take(self, records: Iterable[Record], now: float) -> None:
        """Carry out the decisions among a policy's records, and give it their acks, whatever it says to them again."""
        queue = deque(records)
        while queue:
            record = queue.popleft()
            self._tap(record)
            if isinstance(record, Decision):
                for ack in self.executor.submit(record, now):
                    self._tap(ack)
                    queue.extend(self.policy.handle(ack, now))

    def _tap(self, record: Record) -> None:
        if self.options.tap is not None:
            self.options.tap(record)

    def _is_due(self, what: str, t: float, period_s: float) -> bool:
        """Whether it is due at `t`; its next time is on the same grid, so that nothing drifts."""
        if t < self.due[what]:
            return False
        self.due[what] = (int(t / period_s + 1e-9) + 1) * period_s
        return True
