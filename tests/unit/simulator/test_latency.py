"""Times by hand: prefill 10 ms + 20 us a token; decode 5 ms + 50 us a request + 0.1 us a KV token."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.timing import Limits, Transfer
from headrace.connectors.simulator.traces import Trace

Config = Callable[..., SimulatorConfig]
Traces = Callable[..., Trace]
Run = Callable[..., Cluster]

SMALL = Limits(max_num_batched_tokens=1000, max_num_seqs=4, max_kv_tokens=5000)


def decode_s(n: int, kv: int) -> float:
    return 0.005 + 50e-6 * n + 100e-9 * kv


@pytest.mark.parametrize("kind", ["disagg", "agg"])
def test_the_ttft_of_an_idle_system_is_the_timing_models(
    kind: str, request: pytest.FixtureRequest, trace: Traces, finished: Run
) -> None:
    config = request.getfixturevalue(kind)()
    cluster = finished(config, trace((1.25, 1000, 5)))
    assert cluster.requests[0].ttft_s == pytest.approx(0.010 + 1000 * 20e-6, rel=1e-12)


@pytest.mark.parametrize("kind", ["disagg", "agg"])
def test_the_itl_of_a_lone_request_is_the_mean_of_its_decode_iterations(
    kind: str, request: pytest.FixtureRequest, trace: Traces, finished: Run
) -> None:
    cluster = finished(request.getfixturevalue(kind)(), trace((0.0, 1000, 4)))
    by_hand = (decode_s(1, 1001) + decode_s(1, 1002) + decode_s(1, 1003)) / 3
    assert cluster.requests[0].itl_s == pytest.approx(by_hand, rel=1e-9)


def test_a_long_prompt_is_computed_in_chunks(disagg: Config, trace: Traces, finished: Run) -> None:
    cluster = finished(disagg(limits=SMALL), trace((0.0, 2500, 2)))
    assert cluster.requests[0].ttft_s == pytest.approx(2 * 0.030 + 0.020)


def test_a_chunk_reads_the_kv_of_the_chunks_before_it(disagg: Config, trace: Traces, finished: Run) -> None:
    config = disagg(limits=SMALL)
    prefill = msgspec.structs.replace(config.timing.prefill, per_kv_token_s=1e-6)
    config = msgspec.structs.replace(config, timing=msgspec.structs.replace(config.timing, prefill=prefill))
    cluster = finished(config, trace((0.0, 2500, 2)))
    assert cluster.requests[0].ttft_s == pytest.approx(2 * 0.030 + 0.020 + 1e-6 * (1000 + 2000))


def test_prompts_that_wait_together_are_computed_together(disagg: Config, trace: Traces, finished: Run) -> None:
    cluster = finished(disagg(), trace((0.0, 1000, 2), (0.001, 300, 2), (0.002, 400, 2)))
    ends = [r.first_token_at for r in cluster.requests]
    assert ends == [pytest.approx(0.030), pytest.approx(0.030 + 0.024), pytest.approx(0.030 + 0.024)]


def test_the_batch_limit_splits_a_prompt_between_iterations(disagg: Config, trace: Traces, finished: Run) -> None:
    cluster = finished(disagg(limits=SMALL), trace((0.0, 600, 2), (0.0, 700, 2)))
    first, second = cluster.requests
    assert first.first_token_at == pytest.approx(0.010 + 0.012)  # it found the engine idle and went alone
    assert second.first_token_at == pytest.approx(first.first_token_at + 0.010 + 0.014)


def test_requests_decode_together_and_slow_each_other(disagg: Config, trace: Traces, finished: Run) -> None:
    alone = finished(disagg(), trace((0.0, 1000, 50))).requests[0]
    crowd = finished(disagg(), trace(*[(0.0, 100, 50)] * 10, (0.0, 1000, 50))).requests
    assert all(r.itl_s > alone.itl_s for r in crowd)


def test_the_kv_transfer_delays_the_second_token_not_the_first(disagg: Config, trace: Traces, finished: Run) -> None:
    slow = disagg(transfer=Transfer(latency_s=0.1, tokens_per_s=10_000.0))
    r = finished(slow, trace((0.0, 1000, 2))).requests[0]
    assert r.ttft_s == pytest.approx(0.030)
    assert r.itl_s == pytest.approx(0.1 + 0.1 + decode_s(1, 1001))


@pytest.mark.parametrize("kind", ["disagg", "agg"])
def test_a_single_token_needs_no_decoding(
    kind: str, request: pytest.FixtureRequest, trace: Traces, finished: Run
) -> None:
    cluster = finished(request.getfixturevalue(kind)(), trace((0.0, 1000, 1)))
    r = cluster.requests[0]
    assert r.finished_at == r.first_token_at == pytest.approx(0.030)
    assert r.itl_s is None
    assert r.meets(0.5, 0.001)


def test_decoding_waits_until_its_kv_fits(disagg: Config, trace: Traces, finished: Run) -> None:
    limits = Limits(max_num_batched_tokens=2000, max_num_seqs=4, max_kv_tokens=1500)
    cluster = finished(disagg(limits=limits), trace((0.0, 900, 100), (0.0, 900, 100)))
    first, second = cluster.requests
    assert second.finished_at - first.finished_at > 99 * 0.005


def test_a_prompt_waits_for_the_kv_that_a_full_decode_worker_leaves_behind(
    disagg: Config, trace: Traces, finished: Run
) -> None:
    """Back-pressure: the second prompt's KV cannot go, so a third does not fit on the prefill worker."""
    limits = Limits(max_num_batched_tokens=2000, max_num_seqs=4, max_kv_tokens=1500)
    first, second, third = finished(disagg(limits=limits), trace(*[(0.0, 900, 100)] * 3)).requests
    assert second.first_token_at < first.finished_at
    assert third.first_token_at > first.finished_at


def test_decoding_goes_on_while_an_aggregated_worker_computes_a_prompt(
    agg: Config, trace: Traces, finished: Run
) -> None:
    cluster = finished(agg(), trace((0.0, 100, 40), (0.02, 2000, 2)))
    first, second = cluster.requests
    assert second.finished_at < first.finished_at
    assert cluster.frontend.itl.counts[-1] == 0
    assert max(r.itl_s for r in cluster.requests) < 0.020


def test_an_aggregated_iteration_gives_decoding_the_first_of_its_budget(
    agg: Config, trace: Traces, recorder: Any, finished: Run
) -> None:
    finished(agg(limits=SMALL), trace((0.0, 100, 40), (0.02, 3000, 2)), recorder)
    mixed = [f.scheduled_requests for _, f in recorder.iterations("agg") if f.scheduled_requests.num_decode_requests]
    chunks = [s.sum_prefill_tokens for s in mixed if s.sum_prefill_tokens]
    assert chunks == [999, 999, 999, 3]


@pytest.mark.parametrize("kind", ["disagg", "agg"])
def test_a_request_that_no_worker_can_hold_is_refused_and_counts_as_missed(
    kind: str, request: pytest.FixtureRequest, trace: Traces, finished: Run
) -> None:
    cluster = finished(request.getfixturevalue(kind)(limits=SMALL), trace((0.0, 4990, 20), (0.0, 100, 2)))
    assert cluster.requests[0].rejected
    assert not cluster.requests[0].meets(1e9, 1e9)
    assert (cluster.frontend.errors, cluster.frontend.succeeded, cluster.frontend.inflight) == (1, 1, 0)


def test_a_prompt_that_no_prefill_worker_can_hold_is_refused_though_a_decode_worker_could(
    disagg: Config, trace: Traces, finished: Run
) -> None:
    config = disagg()
    small = msgspec.structs.replace(config.roles["prefill"], limits=SMALL)
    cluster = finished(msgspec.structs.replace(config, roles=config.roles | {"prefill": small}), trace((0.0, 5001, 20)))
    assert cluster.requests[0].rejected


def test_round_robin_takes_turns_and_least_loaded_avoids_the_busy(disagg: Config, trace: Traces, finished: Run) -> None:
    rows = trace((0.0, 2000, 2), (0.001, 100, 2), (0.002, 100, 2))
    turns = finished(disagg(2, 1, router="round_robin"), rows).requests
    loads = finished(disagg(2, 1, router="least_loaded"), rows).requests
    assert turns[2].first_token_at == pytest.approx(0.050 + 0.012)  # behind the long prompt
    assert loads[2].first_token_at == pytest.approx(0.001 + 0.012 + 0.012)  # behind the short one
