"""Random small clusters under random scaling: nothing is lost, nothing is counted twice, no limit is exceeded."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import RoleConfig, RouterKind, SimulatorConfig
from headrace.connectors.simulator.engine import Engine, Identity
from headrace.connectors.simulator.timing import DecodeTiming, Limits, PrefillTiming, Timing, Transfer
from headrace.connectors.simulator.traces import Row, Trace, trace_of
from headrace.schemas.fpm import Fpm, decode_fpm, encode_fpm

STEP_S = 0.25
LIMITS = Limits(max_num_batched_tokens=300, max_num_seqs=6, max_kv_tokens=2000)
LIMIT_NAMES = {"prefill": "kv_used", "decode": "kv_reserved", "agg": "kv_reserved"}

rows = st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 1200), st.integers(1, 60)), min_size=1, max_size=60)


@dataclass(frozen=True)
class Order:
    at: float
    role: int  # index
    replicas: int


orders = st.lists(st.builds(Order, st.floats(0.0, 25.0), st.integers(0, 1), st.integers(0, 4)), max_size=12)


@st.composite
def deployments(draw: st.DrawFn) -> SimulatorConfig:
    timing = Timing(
        prefill=PrefillTiming(base_s=0.01, per_token_s=draw(st.sampled_from([0.0, 1e-4, 1e-3])), per_kv_token_s=1e-6),
        decode=DecodeTiming(base_s=draw(st.sampled_from([0.004, 0.05])), per_request_s=1e-4, per_kv_token_s=1e-6),
    )
    transfer = draw(st.sampled_from([Transfer(), Transfer(latency_s=0.03, tokens_per_s=1e4)]))
    replicas, startup = st.integers(0, 3), st.sampled_from([0.0, 0.5, 4.0])
    names = draw(st.sampled_from([("prefill", "decode"), ("agg",)]))
    roles = {
        name: RoleConfig(
            replicas=draw(replicas), gpus_per_replica=draw(st.integers(1, 4)), startup_s=draw(startup), limits=LIMITS
        )
        for name in names
    }
    kinds: list[RouterKind] = ["least_loaded", "round_robin"]
    router = draw(st.sampled_from(kinds))
    return SimulatorConfig(roles=roles, timing=timing, transfer=transfer, router=router)


class Ledger:
    """Adds up what the FPMs say, and checks each as it comes."""

    def __init__(self) -> None:
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.counters: dict[str, int] = {}
        self.last_at = 0.0

    def __call__(self, worker: Identity, at: float, fpm: Fpm) -> None:
        s = fpm.scheduled_requests
        assert at >= self.last_at
        assert fpm.counter_id == self.counters.get(fpm.worker_id, 0) + 1
        assert s.sum_prefill_tokens + s.num_decode_requests <= LIMITS.max_num_batched_tokens
        assert s.num_decode_requests <= LIMITS.max_num_seqs
        assert s.sum_decode_kv_tokens <= LIMITS.max_kv_tokens
        assert min(s.var_prefill_length, s.var_decode_kv_tokens) >= 0.0
        assert decode_fpm(encode_fpm(fpm)) == fpm
        self.last_at = at
        self.counters[fpm.worker_id] = fpm.counter_id
        self.prefill_tokens += s.sum_prefill_tokens
        self.decode_tokens += s.num_decode_requests


def workers(cluster: Cluster) -> list[Engine]:
    return [w for p in cluster.pools.values() for w in (*p.starting, *p.active, *p.draining)]


def gpus(cluster: Cluster) -> int:
    return sum(p.provisioned * p.config.gpus_per_replica for p in cluster.pools.values())


def advance(cluster: Cluster, at: float) -> None:
    """Run, and check the cost: workers that drain leave in between, and nobody comes without an order."""
    before, paid, since = gpus(cluster), cluster.gpu_hours(), cluster.now
    cluster.run_until(at)
    spent = (cluster.gpu_hours() - paid) * 3600.0
    assert gpus(cluster) * (at - since) - 1e-6 <= spent <= before * (at - since) + 1e-6
    for worker in workers(cluster):
        assert 0 <= getattr(worker, LIMIT_NAMES[worker.identity.role]) <= LIMITS.max_kv_tokens


def run(config: SimulatorConfig, trace: Trace, plan: list[Order], sink: Any = None) -> Cluster:
    """Run with the orders carried out, then with one worker of each role until all is done."""
    cluster, roles = Cluster(config, trace, 1, sink), list(config.roles)
    for at in sorted({o.at for o in plan} | {i * STEP_S for i in range(120)}):
        advance(cluster, at)
        for order in plan:
            if order.at == at:
                cluster.set_targets({roles[order.role % len(roles)]: order.replicas})
    cluster.set_targets(dict.fromkeys(roles, 1))
    for second in range(30, 4000):
        if cluster.drained and cluster.targets_reached():
            break
        advance(cluster, float(second))
    return cluster


@settings(max_examples=60, deadline=None)
@given(config=deployments(), load=rows, plan=orders)
def test_every_request_finishes_exactly_once_whatever_is_scaled(
    config: SimulatorConfig, load: list[Row], plan: list[Order]
) -> None:
    ledger = Ledger()
    cluster = run(config, trace_of("random", load), plan, ledger)
    finished = [r for r in cluster.requests if not r.rejected]
    assert all(r.done and r.arrived_at <= r.first_token_at <= r.finished_at for r in finished)
    assert cluster.frontend.succeeded == len(finished)
    assert cluster.frontend.errors == len(cluster.requests) - len(finished)
    assert cluster.unfinished == cluster.frontend.inflight == cluster.frontend.queued == 0
    assert ledger.prefill_tokens == sum(r.isl for r in finished)
    assert ledger.decode_tokens == sum(r.osl - 1 for r in finished)
    assert cluster.frontend.output_tokens == sum(r.osl for r in finished)


@settings(max_examples=40, deadline=None)
@given(config=deployments(), load=rows, plan=orders)
def test_when_all_is_done_nothing_is_held(config: SimulatorConfig, load: list[Row], plan: list[Order]) -> None:
    cluster = run(config, trace_of("random", load), plan)
    assert cluster.targets_reached()
    for worker in workers(cluster):
        assert worker.empty
        assert worker.load == 0
        assert getattr(worker, LIMIT_NAMES[worker.identity.role]) == 0


@settings(max_examples=30, deadline=None)
@given(config=deployments(), load=rows, plan=orders)
def test_no_request_is_faster_than_alone(config: SimulatorConfig, load: list[Row], plan: list[Order]) -> None:
    """TTFT and ITL are at least those of the request on an idle engine, by the timing model."""
    cluster = run(config, trace_of("random", load), plan)
    p, d = config.timing.prefill, config.timing.decode
    for r in cluster.requests:
        if r.rejected:
            continue
        whole, rest = divmod(r.isl, LIMITS.max_num_batched_tokens)
        alone = (whole + bool(rest)) * p.base_s + r.isl * p.per_token_s
        assert r.ttft_s is not None
        assert r.ttft_s >= alone - 1e-9
        if r.itl_s is not None:
            assert r.itl_s >= d.seconds(1, r.isl + r.osl / 2) - 1e-9


@settings(max_examples=30, deadline=None)
@given(config=deployments(), load=rows, plan=orders, stops=st.lists(st.floats(0.0, 30.0), max_size=20))
def test_where_one_stops_to_look_changes_nothing(
    config: SimulatorConfig, load: list[Row], plan: list[Order], stops: list[float]
) -> None:
    def finish(extra: list[float]) -> list[float]:
        cluster = Cluster(config.with_fleet(dict.fromkeys(config.roles, 1)), trace_of("random", load), 1)
        for at in [*sorted(extra), 200.0, 1000.0]:
            cluster.run_until(at)
        return [r.finished_at for r in cluster.requests]

    assert finish([]) == finish(stops)
