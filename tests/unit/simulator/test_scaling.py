from collections.abc import Callable

import pytest

from headrace.connectors.simulator.cluster import Action, Cluster, Counts
from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.codec import decode, encode
from headrace.schemas.errors import ConfigError

Config = Callable[..., SimulatorConfig]
Traces = Callable[..., Trace]


def test_a_new_worker_is_ready_after_its_start_up(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(startup_s=30.0), trace((0.0, 10, 1)), 1)
    cluster.run_until(5.0)
    cluster.set_targets({"decode": 3})
    assert cluster.counts()["decode"] == Counts(ready=1, starting=2, draining=0, target=3)
    cluster.run_until(34.999)
    assert not cluster.targets_reached()
    cluster.run_until(35.0)
    assert cluster.counts()["decode"] == Counts(ready=3, starting=0, draining=0, target=3)
    assert cluster.targets_reached()


def test_scaling_down_cancels_the_starting_first(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(2, 1), trace((0.0, 10, 1)), 1)
    cluster.set_targets({"prefill": 5})
    cluster.run_until(10.0)
    cluster.set_targets({"prefill": 3})
    assert cluster.counts()["prefill"] == Counts(ready=2, starting=1, draining=0, target=3)
    cluster.run_until(30.0)
    assert cluster.counts()["prefill"] == Counts(ready=3, starting=0, draining=0, target=3)


def test_a_cancelled_worker_never_comes(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(), trace((0.0, 10, 1)), 1)
    cluster.set_targets({"decode": 2})
    cluster.run_until(1.0)
    cluster.set_targets({"decode": 1})
    cluster.run_until(100.0)
    assert cluster.counts()["decode"] == Counts(ready=1, starting=0, draining=0, target=1)


def test_an_idle_worker_leaves_at_once(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(2, 2), trace((0.0, 10, 1)), 1)
    cluster.run_until(5.0)
    cluster.set_targets({"prefill": 1, "decode": 1})
    assert cluster.targets_reached()


def test_a_draining_worker_finishes_its_own_and_takes_no_more(disagg: Config, trace: Traces) -> None:
    rows = trace(*[(0.0, 100, 400)] * 4, (1.0, 100, 400), (1.1, 100, 400))
    cluster = Cluster(disagg(1, 2), rows, 1)
    cluster.run_until(0.5)
    (leaving,) = [w for w in cluster.pools["decode"].active if w.load == 2][-1:]
    cluster.set_targets({"decode": 1})
    assert cluster.counts()["decode"] == Counts(ready=1, starting=0, draining=1, target=1)
    cluster.run_until(1.5)
    assert leaving.load == 2
    assert not cluster.targets_reached()
    cluster.run_until(20.0)
    assert cluster.drained
    assert cluster.targets_reached()
    assert all(r.done for r in cluster.requests)


def test_a_draining_prefill_worker_stays_until_its_kv_is_taken(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(2, 0), trace((0.0, 100, 10)), 1)
    cluster.run_until(5.0)
    cluster.set_targets({"prefill": 0, "decode": 1})
    cluster.run_until(30.0)
    assert cluster.counts()["prefill"].draining == 1  # nobody has taken its KV yet
    cluster.run_until(40.0)
    assert cluster.counts()["prefill"].draining == 0
    assert cluster.drained


@pytest.mark.parametrize("kind", ["disagg", "agg"])
def test_requests_wait_while_there_is_no_worker(kind: str, request: pytest.FixtureRequest, trace: Traces) -> None:
    config = request.getfixturevalue(kind)(0)
    role = "prefill" if kind == "disagg" else "agg"
    cluster = Cluster(config, trace((1.0, 1000, 2), (2.0, 1000, 2)), 1)
    cluster.run_until(10.0)
    assert cluster.frontend.queued == 2
    cluster.set_targets({role: 1})
    cluster.run_until(50.0)
    assert cluster.drained
    assert cluster.requests[0].first_token_at == pytest.approx(40.030)


def test_gpu_hours_count_starting_active_and_draining(disagg: Config, trace: Traces) -> None:
    """Prefill costs 1 GPU, decode 2; the start-up takes 30 s, and a cancelled start costs until it is cancelled."""
    cluster = Cluster(disagg(1, 1), trace((0.0, 10, 1)), 1)
    cluster.run_until(100.0)
    cluster.set_targets({"decode": 2, "prefill": 3})
    cluster.run_until(110.0)
    cluster.set_targets({"prefill": 2})  # cancels one that is starting
    cluster.run_until(200.0)
    cluster.set_targets({"decode": 1})
    cluster.run_until(300.0)
    prefill = 300 + 2 * 10 + 190
    decode = 2 * (300 + 100)
    assert cluster.gpu_hours() == pytest.approx((prefill + decode) / 3600.0)


def test_gpu_hours_of_a_draining_worker_end_with_its_last_token(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(1, 1), trace((0.0, 100, 1000)), 1)
    cluster.run_until(1.0)
    cluster.set_targets({"decode": 0})
    cluster.run_until(100.0)
    done = cluster.requests[0].finished_at
    assert 1.0 < done < 100.0
    assert cluster.gpu_hours() == pytest.approx((100.0 + 2 * done) / 3600.0)


def test_actions_record_changes_alone(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(1, 1), trace((0.0, 10, 1)), 1)
    cluster.run_until(7.0)
    cluster.set_targets({"decode": 1, "prefill": 2})
    cluster.set_targets({"decode": 1})
    assert cluster.actions == [Action(7.0, "prefill", 1, 2)]


@pytest.mark.parametrize(("targets", "says"), [({"agg": 1}, "prefill, decode"), ({"decode": -1}, "-1 replicas")])
def test_impossible_targets_are_refused_and_change_nothing(
    disagg: Config, trace: Traces, targets: dict[str, int], says: str
) -> None:
    cluster = Cluster(disagg(), trace((0.0, 10, 1)), 1)
    with pytest.raises(ConfigError, match=says):
        cluster.set_targets({"prefill": 5} | targets)
    assert cluster.counts()["prefill"].target == 1


def test_the_inventory_says_what_there_is_and_what_it_is(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(2, 1, origin_s=1000.0), trace((0.0, 100, 1000)), 1)
    cluster.run_until(1.0)
    cluster.set_targets({"prefill": 3, "decode": 0})
    record = cluster.inventory()
    assert record.observed_at == 1001.0
    prefill, decode_role = record.roles["prefill"], record.roles["decode"]
    assert (prefill.ready, prefill.starting, prefill.draining, prefill.desired) == (2, 1, 0, 3)
    assert (decode_role.ready, decode_role.draining, decode_role.gpus_per_replica) == (0, 1, 2)
    assert prefill.workers == [w.identity.worker_id for w in cluster.pools["prefill"].active]
    assert prefill.capabilities is not None
    assert prefill.capabilities.max_num_batched_tokens == 2048
    assert decode("inventory", encode(record)) == record


def test_the_revision_rises_with_every_change_of_the_workers(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(), trace((0.0, 10, 1)), 1)
    seen = [cluster.revision]
    for act in (
        lambda: cluster.set_targets({"decode": 2}),
        lambda: cluster.run_until(31.0),
        lambda: cluster.run_until(99.0),
    ):
        act()
        seen.append(cluster.revision)
    assert seen[0] < seen[1] < seen[2] == seen[3]
