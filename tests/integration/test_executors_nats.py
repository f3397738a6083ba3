"""Executors on a real NATS: a decision that was there before, restarts of the server, two executors, a shell script."""

import asyncio
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bus_support import eventually, kept
from decision_support import DGD, ack, decision
from nats_support import fresh_prefix, kill_server, nats_server

from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.factory import open_bus
from headrace.connectors.bus.records import RecordBus
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.command import CommandExecutor, CommandOptions
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.streams import ACKS, STREAMS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path_factory.mktemp("bus")) as running:
        yield running


@pytest.fixture
def prefix() -> str:
    return fresh_prefix()


@asynccontextmanager
async def records_on(server: EmbeddedNats, prefix: str, name: str) -> AsyncIterator[RecordBus]:
    async with open_bus(server.url, prefix) as bus:
        await bus.ensure(STREAMS.values())
        yield RecordBus(bus, name, lambda: 1100.0)


async def acks(records: RecordBus) -> list[tuple[int, AckStatus, str]]:
    found = [record for record in await kept(records, ACKS) if isinstance(record, DecisionAck)]
    return [(one.decision_id, one.status, one.executor) for one in found]


async def settled_as(records: RecordBus, decision_id: int) -> AckStatus:
    """Wait for the ack that settles a decision."""
    reader = await records.read(ACKS, DGD, after=0)
    async with asyncio.timeout(20):
        while True:
            for found, _ in await reader.next():
                if isinstance(found, DecisionAck) and found.decision_id == decision_id and found.status.settles:
                    await reader.close()
                    return found.status


async def test_a_decision_that_was_there_before_is_returned_and_acked(server: EmbeddedNats, prefix: str) -> None:
    async with records_on(server, prefix, "planner") as planner, records_on(server, prefix, "x") as records:
        for n in range(100):
            await planner.publish(decision(n))
        async with DecisionClient(records, DGD, "x") as client:
            found = await client.wait(timeout=10)
            assert found == decision(99)
            await client.accept(found)
            assert await client.still_current(found)
            await client.complete(found, counts=found.targets)
            assert await client.wait(timeout=0.05) is None
        assert await acks(planner) == [(99, AckStatus.ACCEPTED, "x"), (99, AckStatus.APPLIED, "x")]


async def test_iteration_over_decisions_that_come_one_by_one(server: EmbeddedNats, prefix: str) -> None:
    async with records_on(server, prefix, "planner") as planner, records_on(server, prefix, "x") as records:
        client = DecisionClient(records, DGD, "x")
        await client.open()
        seen: list[int] = []

        async def consume() -> None:
            async for found in client:
                seen.append(found.decision_id)
                await client.complete(found)

        consuming = asyncio.create_task(consume())
        for n in range(20):
            await planner.publish(decision(n))
            await eventually(lambda n=n: seen and seen[-1] == n)  # type: ignore[misc]
        await client.close()
        await consuming
        assert seen == list(range(20))


async def test_decisions_and_acks_survive_a_kill_of_the_server(tmp_path: Path, prefix: str) -> None:
    with nats_server(tmp_path / "store") as server:
        async with records_on(server, prefix, "planner") as planner, records_on(server, prefix, "x") as records:
            async with DecisionClient(records, DGD, "x") as client:
                await planner.publish(decision(0))
                found = await client.wait(timeout=10)
                assert found == decision(0)
                kill_server(server)
                acking = asyncio.create_task(client.complete(found))
                await asyncio.sleep(0.1)
                server.start()
                await acking
                await planner.publish(decision(1))
                assert await client.wait(timeout=20) == decision(1)
            assert await acks(planner) == [(0, AckStatus.APPLIED, "x")]


async def test_what_one_executor_has_settled_the_other_one_leaves_alone(server: EmbeddedNats, prefix: str) -> None:
    async with records_on(server, prefix, "a") as a, records_on(server, prefix, "b") as b:
        async with DecisionClient(a, DGD, "a") as first, DecisionClient(b, DGD, "b") as second:
            await a.publish(decision(0))
            found = await first.wait(timeout=10)
            other = await second.wait(timeout=10)
            assert found == other == decision(0)
            await first.complete(found)
            assert not await second.still_current(other)
        async with DecisionClient(b, DGD, "b") as late:
            assert await late.wait(timeout=0.05) is None


async def test_a_former_owners_decision_is_ignored_wherever_it_lies(server: EmbeddedNats, prefix: str) -> None:  # T30
    async with records_on(server, prefix, "planner") as planner, records_on(server, prefix, "x") as records:
        await planner.publish(decision(7, epoch=3))
        await planner.publish(decision(8, epoch=2))
        async with DecisionClient(records, DGD, "x") as client:
            assert await client.wait(timeout=10) == decision(7, epoch=3)
            await planner.publish(decision(9, epoch=2))
            await planner.publish(ack(9, epoch=2, status=AckStatus.APPLIED))
            assert await client.wait(timeout=0.1) is None
            assert await client.still_current(decision(7, epoch=3))


async def test_a_script_scales_each_decision(server: EmbeddedNats, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "scale.sh"
    path.write_text(
        "#!/bin/sh\nset -eu\n"
        f'echo "$HEADRACE_DGD $HEADRACE_TARGET_PREFILL $HEADRACE_TARGET_DECODE" >> {tmp_path}/scaled\n'
        'if [ "$HEADRACE_TARGET_DECODE" -gt 3 ]; then echo "quota: 3 decode workers" >&2; exit 75; fi\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    async with records_on(server, prefix, "planner") as planner, records_on(server, prefix, "x") as records:
        stop = asyncio.Event()
        executor = CommandExecutor(DecisionClient(records, DGD, "x"), CommandOptions.parse(str(path)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(executor.run(stop))
            for n, settled in ((1, AckStatus.APPLIED), (2, AckStatus.REJECTED)):
                await planner.publish(decision(n))
                assert await settled_as(planner, n) is settled
            stop.set()
    assert (tmp_path / "scaled").read_text().splitlines() == ["ml/llama 1 3", "ml/llama 1 4"]
