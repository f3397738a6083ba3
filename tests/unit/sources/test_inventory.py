"""The declared inventory: as declared, then as executors say they have made it."""

import asyncio

import pytest
from bus_support import eventually, memory_records

from headrace.connectors.bus.memory import MemoryBroker
from headrace.connectors.sources.inventory import Declared, DeclaredInventory
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.codec import decode
from headrace.schemas.errors import ConfigError
from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.schemas.streams import ACKS, INVENTORY

DGD = "ml/llama"


def ack(
    decision_id: int = 0, status: AckStatus = AckStatus.APPLIED, *, epoch: int = 1, dgd: str = DGD, **counts: int
) -> DecisionAck:
    return DecisionAck(
        dgd=dgd, epoch=epoch, decision_id=decision_id, status=status, executor="x", at=5.0, counts=dict(counts)
    )


def counts(declared: Declared) -> dict[str, int]:
    return {role: inventory.ready for role, inventory in declared.roles.items()}


def test_the_counts_begin_as_declared() -> None:
    declared = Declared(DGD, "declared", {"prefill": 1, "decode": RoleInventory(ready=2, gpus_per_replica=4)})
    record = declared.record(7.0)
    assert (record.dgd, record.source, record.observed_at) == (DGD, "declared", 7.0)
    assert record.roles["decode"].gpus_per_replica == 4
    assert counts(declared) == {"prefill": 1, "decode": 2}


def test_an_applied_decision_changes_the_counts_and_nothing_else() -> None:
    declared = Declared(DGD, "declared", {"decode": RoleInventory(ready=2, starting=1, gpus_per_replica=4)})
    assert declared.take(ack(decode=5))
    assert declared.roles["decode"] == RoleInventory(ready=5, gpus_per_replica=4)


def test_a_role_that_was_not_declared_appears_when_it_is_made() -> None:
    declared = Declared(DGD, "declared", {"decode": 2})
    assert declared.take(ack(prefill=1))
    assert counts(declared) == {"decode": 2, "prefill": 1}


@pytest.mark.parametrize("status", [AckStatus.ACCEPTED, AckStatus.REJECTED, AckStatus.FAILED, AckStatus.EXPIRED])
def test_what_was_not_applied_changes_nothing(status: AckStatus) -> None:
    declared = Declared(DGD, "declared", {"decode": 2})
    assert not declared.take(ack(0, status, decode=5))
    assert counts(declared) == {"decode": 2}


def test_an_ack_of_an_older_decision_that_comes_late_changes_nothing() -> None:
    declared = Declared(DGD, "declared", {"decode": 2})
    declared.take(ack(7, decode=5))
    assert not declared.take(ack(6, decode=3))
    assert not declared.take(ack(9, epoch=0, decode=3))
    assert counts(declared) == {"decode": 5}


def test_an_applied_decision_without_counts_leaves_them_but_makes_older_acks_old() -> None:
    declared = Declared(DGD, "declared", {"decode": 2})
    assert not declared.take(ack(7))
    assert not declared.take(ack(6, decode=3))
    assert counts(declared) == {"decode": 2}


def test_the_same_counts_again_are_no_change() -> None:
    declared = Declared(DGD, "declared", {"decode": 2})
    assert not declared.take(ack(decode=2))


def test_an_ack_for_another_dgd_changes_nothing() -> None:
    declared = Declared(DGD, "declared", {"decode": 2})
    assert not declared.take(ack(dgd="ml/other", decode=5))


def test_an_inventory_without_roles_is_refused() -> None:
    with pytest.raises(ConfigError, match="no role"):
        Declared(DGD, "declared", {})


def newest(broker: MemoryBroker) -> dict[str, int]:
    """The ready workers per role of the newest inventory on the bus."""
    message = broker.log(INVENTORY.name).last(DGD)
    record = None if message is None else decode(INVENTORY, message.data)
    return {role: found.ready for role, found in record.roles.items()} if isinstance(record, WorkerInventory) else {}


async def test_acks_on_the_bus_change_what_is_published() -> None:
    times = iter(range(10**9))
    broker = MemoryBroker(lambda: float(next(times)))
    records = await memory_records(broker.clock, broker=broker)
    source = DeclaredInventory(records, DGD, {"decode": 2}, every_s=0.02)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(source.run(stop))
        await eventually(lambda: newest(broker) == {"decode": 2})
        await records.publish(ack(decode=6))
        await eventually(lambda: newest(broker) == {"decode": 6})
        stop.set()


async def test_after_a_restart_the_counts_are_those_last_applied() -> None:
    times = iter(range(10**9))
    broker = MemoryBroker(lambda: float(next(times)))
    records = await memory_records(broker.clock, broker=broker)
    await records.publish(ack(3, decode=6))
    await records.publish(ack(4, AckStatus.ACCEPTED))
    stop = asyncio.Event()
    source = DeclaredInventory(records, DGD, {"decode": 2}, every_s=3600.0)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(source.run(stop))
        await eventually(lambda: newest(broker))
        stop.set()
    assert newest(broker) == {"decode": 6}
    assert (await records.bus.info(ACKS)).messages == 2


async def test_while_the_bus_is_away_the_source_lives() -> None:
    times = iter(range(10**9))
    broker = MemoryBroker(lambda: float(next(times)))
    records = await memory_records(broker.clock, broker=broker)
    broker.available = False
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(DeclaredInventory(records, DGD, {"decode": 2}).run(stop))
        await asyncio.sleep(0.02)
        broker.available = True
        await eventually(lambda: broker.log("inventory").last(DGD) is not None)
        assert not running.done()
        stop.set()
