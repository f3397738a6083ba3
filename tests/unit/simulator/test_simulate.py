from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import pytest

from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import SimulatorConfig, Sla
from headrace.connectors.simulator.executor import SimulatedExecutor
from headrace.connectors.simulator.policy import FixedFleet
from headrace.connectors.simulator.simulate import Options, simulate
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.errors import HeadraceError
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.inventory import WorkerInventory
from headrace.schemas.traffic import TrafficWindow

Config = Callable[..., SimulatorConfig]
Traces = Callable[..., Trace]

R = TypeVar("R", bound=Record)

ORIGIN = 1_700_000_000.0
ROWS = [(i * 0.5, 200 + i, 20) for i in range(240)]  # two minutes


def decision(
    n: int, at: float, targets: dict[str, int], *, epoch: int = 1, advisory: bool = False, lasts: float = 900.0
) -> Decision:
    return Decision(
        dgd="sim/cluster", epoch=epoch, decision_id=n, issued_at=at, expires_at=at + lasts, targets=targets,
        previous={}, reasons={}, causes=Causes(tick=n), advisory=advisory,
    )  # fmt: skip


class Script:
    """Ticks every `period` seconds, decides by a plan {tick: targets}, and writes down all that it is given."""

    def __init__(
        self, plan: dict[int, dict[str, int]] | None = None, period: float = 7.3, advisory: bool = False
    ) -> None:
        self.plan = plan or {}
        self.period = period
        self.advisory = advisory
        self.ticks: list[float] = []
        self.seen: list[tuple[float, Record]] = []

    @property
    def next_tick_at(self) -> float:
        return ORIGIN + (len(self.ticks) + 1) * self.period

    def handle(self, record: Record, now: float) -> Sequence[Record]:
        self.seen.append((now, record))
        return ()

    def tick(self, now: float) -> Sequence[Record]:
        self.ticks.append(now)
        n = len(self.ticks)
        return [decision(n, now, self.plan[n], advisory=self.advisory)] if n in self.plan else []

    def of(self, kind: type[R]) -> list[R]:
        return [record for _, record in self.seen if isinstance(record, kind)]


def test_a_fixed_fleet_serves_the_trace_and_is_accounted_for(disagg: Config, trace: Traces) -> None:
    report = simulate(trace(*ROWS), disagg(), FixedFleet())
    assert (report.requests, report.finished, report.unfinished, report.refused) == (240, 240, 0, 0)
    assert report.goodput == 1.0
    assert report.output_tokens == 240 * 20
    assert report.gpu_hours == pytest.approx(3 * report.duration_s / 3600.0)
    assert report.gpu_hours_of["decode"] == 2 * report.gpu_hours_of["prefill"]
    assert report.fpms > 240
    assert report.actions == []


def test_goodput_needs_both_targets(disagg: Config, trace: Traces) -> None:
    rows = trace((0.0, 1000, 10), (10.0, 30_000, 10), (20.0, 1000, 1))  # 0.03 s and 0.75 s of prefill
    report = simulate(rows, disagg(sla=Sla(ttft_ms=500, itl_ms=5.1)), FixedFleet())
    assert report.goodput == pytest.approx(1 / 3)  # the last one: the first misses its ITL, the second both
    assert report.goodput_ttft == pytest.approx(2 / 3)
    assert report.goodput_itl == pytest.approx(1 / 3)


def test_who_is_not_finished_in_the_tail_counts_as_missed(disagg: Config, trace: Traces) -> None:
    report = simulate(trace(*ROWS), disagg(1, 0), FixedFleet(), Options(tail_s=30.0))
    assert report.duration_s == pytest.approx(trace(*ROWS).duration_s + 30.0, abs=0.5)
    assert (report.finished, report.unfinished, report.goodput) == (0, 240, 0.0)
    assert report.itl_ms.p99 is None


def test_a_policy_is_ticked_when_it_asks_for_it(disagg: Config, trace: Traces) -> None:
    policy = Script(period=7.3)
    simulate(trace(*ROWS), disagg(), policy)
    assert len(policy.ticks) == 16
    assert policy.ticks == [pytest.approx(ORIGIN + 7.3 * (i + 1)) for i in range(16)]


def test_records_come_in_order_of_time_and_before_the_tick_that_reads_them(disagg: Config, trace: Traces) -> None:
    policy = Script(period=7.3)
    simulate(trace(*ROWS), disagg(), policy)
    times = [now for now, _ in policy.seen]
    assert times == sorted(times)
    windows = policy.of(TrafficWindow)
    assert [w.end for w in windows] == [pytest.approx(ORIGIN + 5.0 * (i + 1)) for i in range(len(windows))]
    assert sum(w.requests or 0 for w in windows) == 240
    for tick in policy.ticks:
        newest = max(now for now, r in policy.seen if isinstance(r, FpmBatch) and now <= tick)
        assert newest == tick


def test_every_fpm_is_given_once_and_in_order(disagg: Config, trace: Traces) -> None:
    policy = Script()
    report = simulate(trace(*ROWS), disagg(), policy)
    for role in ("prefill", "decode"):
        items = [item for batch in policy.of(FpmBatch) if batch.role == role for item in batch.items]
        assert [item.sequence for item in items] == list(range(len(items)))
    assert sum(len(batch.items) for batch in policy.of(FpmBatch)) == report.fpms


def test_the_first_record_is_the_inventory(disagg: Config, trace: Traces) -> None:
    policy = Script()
    simulate(trace(*ROWS), disagg(), policy)
    now, record = policy.seen[0]
    assert now == ORIGIN
    assert isinstance(record, WorkerInventory)


def test_a_decision_is_carried_out_and_acked_when_it_is_applied(disagg: Config, trace: Traces) -> None:
    policy = Script({3: {"prefill": 1, "decode": 2}}, period=10.0)
    report = simulate(trace(*ROWS), disagg(startup_s=20.0), policy)
    acks = policy.of(DecisionAck)
    assert [(a.decision_id, a.status) for a in acks] == [(3, AckStatus.ACCEPTED), (3, AckStatus.APPLIED)]
    assert [a.at - ORIGIN for a in acks] == [pytest.approx(30.0), pytest.approx(50.0)]
    assert acks[1].counts == {"prefill": 1, "decode": 2}
    assert [(a.role, a.before, a.after) for a in report.actions] == [("decode", 1, 2)]
    assert report.fleet_at_end == {"prefill": 1, "decode": 2}
    assert report.decisions == 1


def test_a_change_of_workers_is_told_at_once(disagg: Config, trace: Traces) -> None:
    policy = Script({3: {"decode": 2}}, period=10.0)
    simulate(trace(*ROWS), disagg(startup_s=21.0), policy, Options(inventory_s=1000.0))
    seen = [
        (r.observed_at - ORIGIN, r.roles["decode"].starting, r.roles["decode"].ready)
        for r in policy.of(WorkerInventory)
    ]
    assert seen == [(0.0, 0, 1), (30.5, 1, 1), (51.0, 0, 2)]


def test_advice_is_not_carried_out(disagg: Config, trace: Traces) -> None:
    policy = Script({3: {"decode": 2}}, advisory=True)
    report = simulate(trace(*ROWS), disagg(), policy)
    assert (report.actions, report.decisions, policy.of(DecisionAck)) == ([], 0, [])


def test_an_overtaken_decision_is_acked_too(disagg: Config, trace: Traces) -> None:
    policy = Script({2: {"decode": 2}, 3: {"decode": 3}}, period=10.0)
    simulate(trace(*ROWS), disagg(startup_s=30.0), policy)
    acks = [(a.decision_id, a.status, a.message) for a in policy.of(DecisionAck)]
    assert acks == [
        (2, AckStatus.ACCEPTED, ""),
        (2, AckStatus.REJECTED, "superseded by decision 3"),
        (3, AckStatus.ACCEPTED, ""),
        (3, AckStatus.APPLIED, ""),
    ]


def test_old_repeated_and_expired_decisions_change_nothing(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(), trace(*ROWS), 1)
    executor = SimulatedExecutor(cluster)
    assert [a.status for a in executor.submit(decision(5, 0.0, {"decode": 1}, epoch=2), 0.0)] == ["accepted", "applied"]
    for old in (
        decision(5, 0.0, {"decode": 9}, epoch=2),
        decision(4, 0.0, {"decode": 9}, epoch=2),
        decision(99, 0.0, {"decode": 9}),
    ):
        assert executor.submit(old, 1.0) == []
    (expired,) = executor.submit(decision(6, 0.0, {"decode": 9}, epoch=2, lasts=10.0), 11.0)
    assert expired.status is AckStatus.EXPIRED
    assert cluster.actions == []


def test_an_impossible_decision_fails_with_its_reason(disagg: Config, trace: Traces) -> None:
    (ack,) = SimulatedExecutor(Cluster(disagg(), trace(*ROWS), 1)).submit(decision(1, 0.0, {"agg": 1}), 0.0)
    assert ack.status is AckStatus.FAILED
    assert "prefill, decode" in ack.message


def test_a_policy_whose_ticks_do_not_move_on_is_told_so(disagg: Config, trace: Traces) -> None:
    with pytest.raises(HeadraceError, match="next_tick_at"):
        simulate(trace(*ROWS), disagg(), Script(period=0.0))


def test_the_same_seed_gives_the_same_records_and_report(disagg: Config, trace: Traces) -> None:
    def run(seed: int) -> tuple[list[bytes], bytes]:
        records: list[Record] = []
        policy = Script({2: {"decode": 3}, 8: {"decode": 1, "prefill": 2}})
        report = simulate(trace(*ROWS), disagg(), policy, Options(seed=seed, tap=records.append))
        return [encode(r) for r in records], msgspec.json.encode(report)

    assert run(3) == run(3)
    assert run(3)[0] != run(4)[0]


def test_without_telemetry_the_requests_fare_the_same(disagg: Config, trace: Traces) -> None:
    full = simulate(trace(*ROWS), disagg(), FixedFleet())
    cheap = simulate(trace(*ROWS), disagg(), FixedFleet(), Options(telemetry=False))
    assert cheap.fpms == 0
    assert (cheap.ttft_ms, cheap.itl_ms, cheap.goodput) == (full.ttft_ms, full.itl_ms, full.goodput)


def test_the_timeline_covers_the_whole_run(disagg: Config, trace: Traces) -> None:
    report = simulate(trace(*ROWS), disagg(), Script({3: {"decode": 2}}), Options(timeline_s=10.0))
    rows = report.timeline
    assert [row.at_s for row in rows[:-1]] == [pytest.approx(10.0 * (i + 1)) for i in range(len(rows) - 1)]
    assert rows[-1].at_s == report.duration_s
    assert rows[0].requests_per_s == pytest.approx(2.1)
    assert rows[0].goodput == 1.0
    assert rows[-1].roles["decode"].ready == 2
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


def test_an_interval_of_the_timeline_holds_the_request_that_arrives_at_its_end(disagg: Config, trace: Traces) -> None:
    rows = trace((1.0, 100, 2), (10.0, 1_000_000, 2), (11.0, 100, 2))  # the second is refused
    report = simulate(rows, disagg(), FixedFleet(), Options(timeline_s=10.0))
    assert [(row.goodput, row.requests_per_s) for row in report.timeline[:1]] == [(0.5, 0.2)]


def test_progress_ends_at_one(disagg: Config, trace: Traces) -> None:
    seen: list[float] = []
    simulate(trace(*ROWS), disagg(), FixedFleet(), Options(progress=seen.append))
    assert seen == sorted(seen)
    assert 0.0 < seen[0] < 0.1
    assert seen[-1] == 1.0
