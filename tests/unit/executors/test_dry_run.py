"""The dry run: it says what would be done, and leaves the decision to whoever does it."""

import asyncio

import pytest
from bus_support import eventually, kept, memory_records
from decision_support import DGD, decision

from headrace.connectors.bus.memory import MemoryBroker
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.dry_run import DryRunExecutor, line
from headrace.connectors.executors.gate import Refusal
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.decision import Decision
from headrace.schemas.streams import ACKS


def test_a_line_says_every_role_with_its_reason() -> None:
    assert line(decision(4, epoch=2), None) == (
        "ml/llama decision 4 of epoch 2: would scale decode 1 -> 6 (scale_up), prefill stays 1 (no_change)"
    )


def test_a_line_says_why_a_decision_is_ignored() -> None:
    said = line(decision(4, previous={}, targets={"decode": 2}, reasons={}), Refusal.ADVISORY)
    assert said == "ml/llama decision 4 of epoch 1: ignored (advisory): decode ? -> 2 (no reason)"


async def said_about(
    *decisions: Decision, reject: bool = False, before: int = 0
) -> tuple[list[str], list[DecisionAck]]:
    """What a dry run says, and its acks; the first `before` decisions are there when it starts."""
    broker = MemoryBroker(lambda: 1100.0)
    planner = await memory_records(broker.clock, "planner", broker)
    records = await memory_records(broker.clock, "dry", broker)
    said: list[str] = []
    stop = asyncio.Event()
    executor = DryRunExecutor(DecisionClient(records, DGD, "dry"), say=said.append, reject=reject)
    for n, one in enumerate(decisions[:before]):
        await planner.publish(one, message_id=f"before {n}")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(executor.run(stop))
        await asyncio.sleep(0.01)
        for n, one in enumerate(decisions[before:]):
            await planner.publish(one, message_id=f"{n}")
        await eventually(lambda: len(said) == len(decisions) - max(before - 1, 0))
        stop.set()
    return said, [ack for ack in await kept(planner, ACKS) if isinstance(ack, DecisionAck)]


async def test_a_dry_run_acks_nothing() -> None:
    """An ack of a bystander would settle the decision under the hands of the executor that carries it out."""
    said, acks = await said_about(decision(0))
    assert "would scale decode 1 -> 2" in said[0]
    assert acks == []


async def test_a_dry_run_says_the_decision_that_is_there_when_it_starts() -> None:
    said, _ = await said_about(decision(0), decision(1), before=2)
    assert [text.partition(":")[0] for text in said] == ["ml/llama decision 1 of epoch 1"]


async def test_a_dry_run_says_what_an_executor_would_ignore() -> None:
    said, _ = await said_about(
        decision(4, epoch=2),
        decision(4, epoch=2),
        decision(3, epoch=2),
        decision(9, epoch=1),
        decision(5, epoch=2, advisory=True),
    )
    ignored = [text.split("(")[1].split(")")[0] for text in said[1:]]
    assert ignored == ["repeated", "superseded", "stale_epoch", "advisory"]


async def test_a_dry_run_that_is_told_to_rejects_what_it_would_do_and_nothing_else() -> None:
    _, acks = await said_about(decision(4), decision(3), decision(5, advisory=True), reject=True)
    assert [(ack.decision_id, ack.status, ack.message) for ack in acks] == [(4, AckStatus.REJECTED, "dry run")]


@pytest.mark.parametrize("reject", [False, True])
async def test_a_dry_run_acks_no_expired_decision(reject: bool) -> None:
    said, acks = await said_about(decision(4, expires_at=1099.0), reject=reject)
    assert "ignored (expired)" in said[0]
    assert acks == []
