from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.engine import Identity
from headrace.connectors.simulator.fpm_sink import BatchSink, EventPlaneSink
from headrace.connectors.simulator.timing import Limits, Transfer
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.fpm import (
    Fpm,
    QueuedRequests,
    ScheduledRequests,
    decode_envelope,
    decode_fpm,
    encode_envelope,
    encode_fpm,
)

Config = Callable[..., SimulatorConfig]
Traces = Callable[..., Trace]
Run = Callable[..., Cluster]

MIXED = [(0.0, 1500, 30), (0.001, 700, 9), (0.002, 900, 5), (0.5, 30, 1), (0.9, 4000, 12)]


def test_a_prefill_iteration_says_what_it_computed_and_what_still_waits(
    disagg: Config, trace: Traces, recorder: Any, finished: Run
) -> None:
    finished(disagg(limits=Limits(max_num_batched_tokens=1000)), trace((0.0, 1600, 2), (0.001, 200, 2)), recorder)
    (end1, one), (end2, two) = recorder.iterations("prefill")
    assert (end1, one.wall_time) == (pytest.approx(0.030), pytest.approx(0.030))
    assert one.scheduled_requests == ScheduledRequests(1, 1000, 0.0, 0)
    assert one.queued_requests == QueuedRequests(1, 200, 0.0)
    assert (end2, two.wall_time) == (pytest.approx(0.056), pytest.approx(0.026))
    assert two.scheduled_requests == ScheduledRequests(2, 800, 490_000.0, 1000)  # variance of 1600 and 200
    assert two.queued_requests == QueuedRequests()


def test_a_decode_iteration_says_the_contexts_it_read(
    disagg: Config, trace: Traces, recorder: Any, finished: Run
) -> None:
    finished(disagg(), trace((0.0, 1000, 3), (0.0, 400, 1)), recorder)
    seen = [f.scheduled_requests for _, f in recorder.iterations("decode")]
    assert seen == [ScheduledRequests(0, 0, 0.0, 0, 1, kv, 0.0) for kv in (1001, 1002)]


def test_decode_variance_is_that_of_the_contexts(disagg: Config, trace: Traces, recorder: Any, finished: Run) -> None:
    finished(disagg(2, 1), trace((0.0, 400, 200), (0.0, 200, 200)), recorder)
    two = [
        f.scheduled_requests for _, f in recorder.iterations("decode") if f.scheduled_requests.num_decode_requests == 2
    ]
    first, last = two[0], two[-1]
    assert first.var_decode_kv_tokens == last.var_decode_kv_tokens > 0.0  # all contexts grow alike


def test_a_request_in_transfer_is_a_queued_decode(disagg: Config, trace: Traces, recorder: Any, finished: Run) -> None:
    config = disagg(transfer=Transfer(latency_s=0.05))
    finished(config, trace((0.0, 100, 30), (0.1, 500, 2)), recorder)
    queued = [f.queued_requests for _, f in recorder.iterations("decode") if f.queued_requests.num_decode_requests]
    assert len(queued) >= 5
    assert set(queued) == {QueuedRequests(0, 0, 0.0, 1, 501, 0.0)}


def test_waiting_for_kv_space_is_a_queued_decode(disagg: Config, trace: Traces, recorder: Any, finished: Run) -> None:
    limits = Limits(max_kv_tokens=1500)
    finished(disagg(limits=limits), trace((0.0, 900, 100), (0.0, 500, 101)), recorder)
    assert any(f.queued_requests.sum_decode_kv_tokens == 501 for _, f in recorder.iterations("decode"))


def test_an_aggregated_worker_queues_prompts(agg: Config, trace: Traces, recorder: Any, finished: Run) -> None:
    limits = Limits(max_num_seqs=1)
    finished(agg(limits=limits), trace((0.0, 100, 5), (0.0, 300, 2), (0.0, 500, 2)), recorder)
    assert recorder.iterations("agg")[0][1].queued_requests == QueuedRequests(2, 800, 10_000.0)


def test_counters_rise_by_one_from_one_for_each_worker(
    disagg: Config, trace: Traces, recorder: Any, finished: Run
) -> None:
    finished(disagg(2, 2), trace(*MIXED), recorder, idle_s=3.0)
    counters: dict[str, list[int]] = {}
    for worker, _, fpm in recorder.seen:
        assert fpm.worker_id == worker.worker_id
        counters.setdefault(fpm.worker_id, []).append(fpm.counter_id)
    assert len(counters) == 4
    assert all(ids == list(range(1, len(ids) + 1)) for ids in counters.values())


def test_an_idle_worker_sends_an_all_zero_heartbeat_after_each_second_of_silence(
    disagg: Config, trace: Traces, recorder: Any
) -> None:  # dynamo#11329: without it a worker looks busy for ever
    cluster = Cluster(disagg(), trace((2.5, 1000, 1)), 1, recorder)
    cluster.run_until(5.6)
    assert [at for at, _ in recorder.of("decode")] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [at for at, _ in recorder.of("prefill")] == [1.0, 2.0] + [pytest.approx(2.53 + i) for i in range(4)]
    beat = recorder.of("decode")[0][1]
    assert beat == Fpm(worker_id=beat.worker_id, counter_id=1)


def test_a_starting_worker_is_silent(disagg: Config, trace: Traces, recorder: Any) -> None:
    cluster = Cluster(disagg(startup_s=10.0), trace((0.0, 10, 1)), 1, recorder)
    cluster.set_targets({"decode": 2})
    cluster.run_until(10.9)
    assert len({w.worker_id for w, _, _ in recorder.seen if w.role == "decode"}) == 1
    cluster.run_until(11.0)
    assert len({w.worker_id for w, _, _ in recorder.seen if w.role == "decode"}) == 2


def test_a_worker_that_has_gone_is_silent(disagg: Config, trace: Traces, recorder: Any) -> None:
    cluster = Cluster(disagg(2, 1), trace((0.0, 10, 1)), 1, recorder)
    cluster.run_until(3.5)
    cluster.set_targets({"prefill": 1})
    recorder.seen.clear()
    cluster.run_until(9.5)
    assert len(recorder.of("prefill")) == 6


def test_ids_are_decimal_strings_of_different_unsigned_numbers(
    disagg: Config, trace: Traces, recorder: Any, finished: Run
) -> None:
    finished(disagg(3, 3), trace(*MIXED), recorder, idle_s=1.0)
    workers: set[Identity] = {worker for worker, _, _ in recorder.seen}
    ids = [int(w.worker_id) for w in workers] + [w.publisher_id for w in workers]
    assert len(set(ids)) == 12
    assert all(0 < int(w.worker_id) < 2**63 for w in workers)
    assert all(0 < w.publisher_id < 2**53 for w in workers)


def plain(fpm: Fpm) -> dict[str, Any]:
    """An FPM as the map that Dynamo writes, in its order of keys."""
    return {
        "version": 1,
        "worker_id": fpm.worker_id,
        "dp_rank": 0,
        "counter_id": fpm.counter_id,
        "wall_time": fpm.wall_time,
        "scheduled_requests": msgspec.structs.asdict(fpm.scheduled_requests),
        "queued_requests": msgspec.structs.asdict(fpm.queued_requests),
    }


@pytest.mark.parametrize("kind", ["disagg", "agg"])
def test_payloads_are_dynamos_bytes(kind: str, request: pytest.FixtureRequest, trace: Traces, recorder: Any) -> None:
    config = request.getfixturevalue(kind)()
    sink = BatchSink(config)

    def both(worker: Identity, at: float, fpm: Fpm) -> None:
        recorder(worker, at, fpm)
        sink(worker, at, fpm)

    Cluster(config, trace(*MIXED), 1, both).run_until(5.0)
    payloads = {item.payload for batch in sink.take(5.0) for item in batch.items}
    assert payloads == {msgspec.msgpack.encode(plain(fpm)) for _, _, fpm in recorder.seen}
    assert all(encode_fpm(decode_fpm(payload)) == payload for payload in payloads)


def test_batches_carry_role_time_and_sequence(disagg: Config, trace: Traces) -> None:
    config = disagg(origin_s=1000.0)
    sink = BatchSink(config)
    cluster = Cluster(config, trace(*MIXED), 1, sink)
    cluster.run_until(2.0)
    batches = {batch.role: batch for batch in sink.take(2.0)}
    assert set(batches) == {"prefill", "decode"}
    for batch in batches.values():
        assert (batch.dgd, batch.received_at) == ("sim/cluster", 1002.0)
        assert [item.sequence for item in batch.items] == list(range(len(batch.items)))  # one worker: from 0, +1
        assert all(1000.0 <= item.published_at <= 1002.0 for item in batch.items)
    assert sink.take(2.0) == []


def test_the_event_plane_carries_envelopes_on_dynamos_subjects(disagg: Config, trace: Traces) -> None:
    config = disagg(origin_s=1_796_086_520.0)
    sink = EventPlaneSink(config)
    Cluster(config, trace(*MIXED), 1, sink).run_until(2.0)
    out = sink.take()
    assert {subject for subject, _ in out} == {config.subject("prefill"), config.subject("decode")}
    for _, data in out:
        envelope = decode_envelope(data)
        assert encode_envelope(envelope) == data
        assert decode_fpm(envelope.payload).counter_id == envelope.sequence + 1
        assert 1_796_086_520_000 <= envelope.published_at <= 1_796_086_522_000


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_workers(disagg: Config, trace: Traces) -> None:
    def run(seed: int) -> list[tuple[str, bytes]]:
        sink = EventPlaneSink(disagg(2, 2))
        Cluster(disagg(2, 2), trace(*MIXED), seed, sink).run_until(4.0)
        return sink.take()

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_without_a_sink_the_requests_take_the_same_time(
    disagg: Config, trace: Traces, recorder: Any, finished: Run
) -> None:
    rows = trace(*MIXED)
    with_fpms, without = finished(disagg(), rows, recorder), finished(disagg(), rows)
    assert [r.finished_at for r in with_fpms.requests] == [r.finished_at for r in without.requests]
