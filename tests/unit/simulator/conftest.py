"""Small deployments with round numbers, so that expected times can be written by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import RoleConfig, SimulatorConfig, Sla
from headrace.connectors.simulator.engine import Identity
from headrace.connectors.simulator.timing import DecodeTiming, Limits, PrefillTiming, Timing
from headrace.connectors.simulator.traces import Row, Trace, trace_of
from headrace.schemas.fpm import Fpm

ROUND = Timing(
    prefill=PrefillTiming(base_s=0.010, per_token_s=20e-6),  # 1000 tokens: 30 ms
    decode=DecodeTiming(base_s=0.005, per_request_s=50e-6, per_kv_token_s=100e-9),
)
LIMITS = Limits(max_num_batched_tokens=2048, max_num_seqs=64, max_kv_tokens=100_000)


@pytest.fixture
def disagg() -> Callable[..., SimulatorConfig]:
    """A disaggregated deployment: replicas per role, and any other field."""

    def make(
        prefill: int = 1, decode: int = 1, *, limits: Limits = LIMITS, startup_s: float = 30.0, **more: Any
    ) -> SimulatorConfig:
        roles = {
            "prefill": RoleConfig(replicas=prefill, limits=limits, startup_s=startup_s),
            "decode": RoleConfig(replicas=decode, gpus_per_replica=2, limits=limits, startup_s=startup_s),
        }
        return SimulatorConfig(**{"roles": roles, "timing": ROUND, "sla": Sla(ttft_ms=500, itl_ms=20), **more})

    return make


@pytest.fixture
def agg() -> Callable[..., SimulatorConfig]:
    """An aggregated deployment."""

    def make(replicas: int = 1, *, limits: Limits = LIMITS, startup_s: float = 30.0, **more: Any) -> SimulatorConfig:
        roles = {"agg": RoleConfig(replicas=replicas, limits=limits, startup_s=startup_s)}
        return SimulatorConfig(**{"roles": roles, "timing": ROUND, "sla": Sla(ttft_ms=500, itl_ms=40), **more})

    return make


@pytest.fixture
def trace() -> Callable[..., Trace]:
    """A trace of (arrival s, isl, osl) rows."""

    def make(*rows: Row) -> Trace:
        return trace_of("test", rows)

    return make


class Recorder:
    """An FPM sink that keeps everything."""

    def __init__(self) -> None:
        self.seen: list[tuple[Identity, float, Fpm]] = []

    def __call__(self, worker: Identity, at: float, fpm: Fpm) -> None:
        self.seen.append((worker, at, fpm))

    def of(self, role: str) -> list[tuple[float, Fpm]]:
        return [(at, fpm) for worker, at, fpm in self.seen if worker.role == role]

    def iterations(self, role: str) -> list[tuple[float, Fpm]]:
        """Without the heartbeats."""
        return [(at, fpm) for at, fpm in self.of(role) if fpm.wall_time > 0.0]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def finished() -> Callable[..., Cluster]:
    """A cluster that has run its whole trace, plus a while of idling."""

    def run(config: SimulatorConfig, trace: Trace, sink: Recorder | None = None, idle_s: float = 0.0) -> Cluster:
        cluster = Cluster(config, trace, 1, sink)
        for t in range(1, 100_000):
            if cluster.drained and cluster.now >= trace.duration_s:
                break
            cluster.run_until(float(t))
        cluster.run_until(cluster.now + idle_s)
        assert cluster.drained
        return cluster

    return run
