"""What became of a decision, from its acks."""

import asyncio

import msgspec
import pytest
from click.testing import CliRunner

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.memory import MemoryBus
from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.decision import Causes, Decision
from headrace.schemas.streams import STREAMS
from headrace.streams.cli.decisions_list import COLUMNS, Fate, _row, fates, read_both
from headrace.streams.cli.main import cli

NOW = 10_000.0


def decision(i: int, *, dgd: str = "ml/a", epoch: int = 1, issued_at: float = 9_900.0, **more: object) -> Decision:
    fields: dict[str, object] = {
        "targets": {"decode": 3, "prefill": 1},
        "previous": {"decode": 2, "prefill": 1},
        "reasons": {"decode": "scale_up", "prefill": "no_change"},
    }
    return Decision(
        dgd=dgd,
        epoch=epoch,
        decision_id=i,
        issued_at=issued_at,
        expires_at=issued_at + 1800,
        causes=Causes(tick=i),
        **(fields | more),  # type: ignore[arg-type]
    )


def ack(of: Decision, status: AckStatus, *, after_s: float = 42.0, executor: str = "k8s") -> DecisionAck:
    at = of.issued_at + after_s
    return DecisionAck(dgd=of.dgd, epoch=of.epoch, decision_id=of.decision_id, status=status, executor=executor, at=at)


def status(d: Decision, *acks: DecisionAck, others: tuple[Decision, ...] = (), now: float = NOW) -> str:
    return str(fates([d, *others], acks, now)[0].status)


@pytest.mark.parametrize("settling", [s for s in AckStatus if s.settles])
def test_the_ack_that_settles_it_is_its_fate(settling: AckStatus) -> None:
    d = decision(0)
    said = ack(d, settling)
    assert fates([d], [ack(d, AckStatus.ACCEPTED), said], NOW) == [Fate(settling, said)]


def test_the_first_ack_that_settles_it_counts() -> None:
    d = decision(0)
    assert status(d, ack(d, AckStatus.FAILED), ack(d, AckStatus.APPLIED)) == "failed"


def test_before_any_ack_it_is_outstanding() -> None:
    assert status(decision(0)) == "outstanding"


def test_while_an_executor_works_on_it_it_is_accepted() -> None:
    d = decision(0)
    assert status(d, ack(d, AckStatus.ACCEPTED)) == "accepted"


def test_once_it_has_expired_it_is_unanswered() -> None:
    d = decision(0)
    assert status(d, ack(d, AckStatus.ACCEPTED), now=d.expires_at) == "unanswered"


def test_once_a_newer_one_is_there_it_is_unanswered() -> None:
    assert status(decision(0), others=(decision(1),)) == "unanswered"
    assert status(decision(5), others=(decision(6, epoch=2),)) == "unanswered"
    assert status(decision(0), others=(decision(1, dgd="ml/b"),)) == "outstanding"


def test_an_ack_is_for_its_epoch_and_deployment_alone() -> None:
    d = decision(7)
    other_epoch, other_dgd = decision(7, epoch=2), decision(7, dgd="ml/b")
    assert status(d, ack(other_epoch, AckStatus.APPLIED), ack(other_dgd, AckStatus.APPLIED)) == "outstanding"


def test_nobody_answers_an_advisory_decision() -> None:
    assert status(decision(0, advisory=True)) == "advisory"


def cells(d: Decision, *acks: DecisionAck) -> dict[str, str]:
    row = _row(d, fates([d], acks, NOW)[0])
    return {column.title: column.text(row) for column in COLUMNS}


def test_a_row_says_what_was_decided_and_what_came_of_it() -> None:
    d = decision(41, epoch=3)
    assert cells(d, ack(d, AckStatus.APPLIED)) == {
        "id": "41",
        "epoch": "3",
        "time": "1970-01-01T02:45:00Z",
        "dgd": "ml/a",
        "targets": "decode 2->3, prefill 1",
        "reasons": "decode scale_up, prefill no_change",
        "status": "applied",
        "executor": "k8s",
        "delay": "42 s",
        "advisory": "no",
    }


def test_what_is_unknown_is_shown_as_unknown() -> None:
    row = cells(decision(0, previous={}, reasons={}))
    assert row["targets"] == "decode ?->3, prefill ?->1"
    assert (row["reasons"], row["executor"], row["delay"]) == ("", "-", "-")


def test_one_reason_of_all_roles_is_said_once() -> None:
    assert cells(decision(0, reasons={"decode": "drift", "prefill": "drift"}))["reasons"] == "drift"


async def test_the_newest_decisions_are_read_with_their_acks() -> None:
    bus = MemoryBus()
    await bus.open()
    await bus.ensure(STREAMS.values())
    records = RecordBus(bus, "test", lambda: NOW)
    for i in range(100):
        d = decision(i, dgd=f"ml/{'ab'[i % 2]}", issued_at=9_000.0 + i)
        await records.publish(d)
        await records.publish(ack(d, AckStatus.APPLIED, after_s=0.5))
    await bus.publish(Outgoing("decisions", "ml/a", b"junk"))
    found, acks = await read_both(bus, "ml/a", 3, asyncio.Event())
    assert [d.decision_id for d in found] == [94, 96, 98]
    assert [fate.status for fate in fates(found, acks, NOW)] == ["applied"] * 3
    both, _ = await read_both(bus, None, 2, asyncio.Event())
    assert [d.decision_id for d in both] == [98, 99]


async def test_a_decision_that_was_written_twice_is_listed_once() -> None:
    bus = MemoryBus()
    await bus.open()
    await bus.ensure(STREAMS.values())
    for _ in range(2):
        await bus.publish(Outgoing("decisions", "ml/a", msgspec.json.encode(decision(0))))
    found, _ = await read_both(bus, None, 20, asyncio.Event())
    assert [d.decision_id for d in found] == [0]


@pytest.mark.parametrize("timeout", ["0", "-1", "soon"])
def test_a_timeout_that_is_none_is_refused(timeout: str) -> None:
    result = CliRunner().invoke(cli, ["decisions", "follow", "--exec", "x", "--timeout", timeout])
    assert result.exit_code == 2
    assert "--timeout" in result.stderr
