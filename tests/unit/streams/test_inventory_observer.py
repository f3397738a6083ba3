"""The inventory: the newest sighting of each role, or why there is none."""

import msgspec
import pytest
from world import DGD, LIMITS, inventory

from headrace.models.known import Known, Unknown
from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory
from headrace.streams.agents.inventory import InventoryObserver


@pytest.fixture
def observer() -> InventoryObserver:
    return InventoryObserver(("prefill", "decode"), stale_after_s=60.0, max_skew_s=30.0)


def ready(observer: InventoryObserver, role: str, now: float) -> int | None:
    found = observer.role(role, now)
    return found.value.ready if isinstance(found, Known) else None


def record(at: float, **roles: RoleInventory) -> WorkerInventory:
    return WorkerInventory(dgd=DGD, source="other", observed_at=at, roles=roles)


def test_without_a_record_the_inventory_is_unknown(observer):
    assert observer.role("decode", 0.0) == Unknown("no inventory has been published for this DGD")
    assert not observer.heard


def test_the_newest_sighting_counts(observer):
    assert observer.handle(inventory(1.0, decode=2), 1.0)
    assert observer.handle(inventory(2.0, decode=3), 2.0)
    assert not observer.handle(inventory(1.5, decode=9), 2.5)
    assert ready(observer, "decode", 3.0) == 3


def test_a_repeated_record_changes_nothing_and_keeps_nothing_alive(observer):
    observer.handle(inventory(1.0, decode=2), 1.0)
    before = msgspec.json.encode(observer.to_state())
    assert not observer.handle(inventory(1.0, decode=2), 50.0)
    assert msgspec.json.encode(observer.to_state()) == before
    assert ready(observer, "decode", 61.1) is None


def test_an_old_sighting_is_unknown(observer):
    observer.handle(inventory(1.0, decode=2), 1.0)
    assert ready(observer, "decode", 61.0) == 2
    assert observer.role("decode", 62.0) == Unknown("the inventory of test is 61 s old (limit 60 s)")


def test_a_role_that_is_not_named_is_unknown_and_not_empty(observer):
    observer.handle(inventory(1.0, decode=2), 1.0)
    found = observer.role("prefill", 1.0)
    assert found == Unknown("no inventory names the role 'prefill' (there are: decode)")


def test_a_role_of_count_zero_is_known(observer):
    observer.handle(inventory(1.0, decode=0), 1.0)
    assert ready(observer, "decode", 1.0) == 0


def test_sources_may_name_different_roles(observer):
    observer.handle(inventory(1.0, decode=2), 1.0)
    observer.handle(record(2.0, prefill=RoleInventory(ready=5)), 2.0)
    assert (ready(observer, "decode", 3.0), ready(observer, "prefill", 3.0)) == (2, 5)


def test_the_shape_of_a_replica_stays_as_it_was_said(observer):
    observer.handle(inventory(1.0, gpus=4, decode=2), 1.0)
    observer.handle(record(2.0, decode=RoleInventory(ready=3)), 2.0)
    observer.handle(record(3.0, decode=RoleInventory(ready=4, capabilities=Capabilities(max_num_seqs=8))), 3.0)
    found = observer.role("decode", 3.0)
    assert isinstance(found, Known)
    assert (found.value.ready, found.value.gpus_per_replica) == (4, 4)
    assert found.value.capabilities == msgspec.structs.replace(LIMITS, max_num_seqs=8)


def test_worker_ids_do_not_outlive_their_record(observer):
    observer.handle(record(1.0, decode=RoleInventory(ready=1, workers=["11"])), 1.0)
    observer.handle(record(2.0, decode=RoleInventory(ready=1)), 2.0)
    found = observer.role("decode", 2.0)
    assert isinstance(found, Known)
    assert found.value.workers is None


def test_roles_that_are_not_planned_are_not_kept(observer):
    for i in range(1000):
        observer.handle(record(float(i + 1), **{f"role{i}": RoleInventory(ready=1)}), float(i + 1))
    assert observer.seen == {}
    assert isinstance(observer.role("decode", 1000.0), Unknown)


def test_a_clock_ahead_does_not_silence_later_records(observer):
    observer.handle(inventory(1e9, decode=2), 10.0)
    observer.handle(inventory(11.0, decode=3), 11.0)
    assert ready(observer, "decode", 12.0) == 3


def test_a_clock_behind_by_years_delays_by_no_more_than_the_skew(observer):
    now = 1e9
    observer.handle(inventory(5.0, decode=2), now)
    assert ready(observer, "decode", now + 30.0) == 2
    assert ready(observer, "decode", now + 31.0) is None
    assert observer.seen_at("decode") == now - 30.0


def test_state_comes_back_as_it_was(observer):
    observer.handle(inventory(1.0, decode=2, prefill=1), 1.5)
    other = InventoryObserver(("prefill", "decode"), stale_after_s=60.0, max_skew_s=30.0)
    other.load_state(msgspec.json.decode(msgspec.json.encode(observer.to_state())))
    assert (other.seen, other.named) == (observer.seen, observer.named)
