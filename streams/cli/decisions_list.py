"""The newest decisions, joined with the acks that say what came of them."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.connectors.bus.base import Bus, Message
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.codec import decode
from headrace.schemas.decision import Decision
from headrace.schemas.errors import RecordError
from headrace.schemas.streams import ACKS, DECISIONS
from headrace.streams.cli import output
from headrace.streams.cli.connect import SHORT_PATIENCE_S, Client, open_bus, run_until_stopped
from headrace.streams.cli.output import Column, Row
from headrace.streams.cli.streams_tail import newest
from headrace.streams.settings import Settings

OUTSTANDING = "outstanding"
UNANSWERED = "unanswered"
ADVISORY = "advisory"
_MARGIN_S = 60.0  # an executor's clock and the broker's may differ by this

Place = tuple[str, int, int]  # DGD, epoch, id


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a decision: the status, and the ack that says so where there is one."""

    status: str
    ack: DecisionAck | None = None


def place(record: Decision | DecisionAck) -> Place:
    return record.dgd, record.epoch, record.decision_id


def fates(decisions: Sequence[Decision], acks: Iterable[DecisionAck], now: float) -> list[Fate]:
    """The fate of each decision; both in the order of their streams. `now`: seconds since the epoch."""
    settling: dict[Place, DecisionAck] = {}
    accepted: dict[Place, DecisionAck] = {}
    for ack in acks:
        if ack.status.settles:
            settling.setdefault(place(ack), ack)  # the first that settles it counts
        else:
            accepted[place(ack)] = ack
    newest = {decision.dgd: place(decision) for decision in sorted(decisions, key=place)}
    found = []
    for decision in decisions:
        here = place(decision)
        if here in settling:
            found.append(Fate(settling[here].status, settling[here]))
        elif decision.advisory:
            found.append(Fate(ADVISORY))
        elif newest[decision.dgd] != here or decision.expires_at <= now:
            found.append(Fate(UNANSWERED, accepted.get(here)))
        elif here in accepted:
            found.append(Fate(AckStatus.ACCEPTED, accepted[here]))
        else:
            found.append(Fate(OUTSTANDING))
    return found


def list_decisions(settings: Settings, *, dgd: str | None, limit: int, as_json: bool) -> None:
    """Print the newest decisions, oldest first."""

    async def main(stop: asyncio.Event) -> tuple[list[Decision], list[DecisionAck]]:
        async with open_bus(settings, Client("decisions", patience_s=SHORT_PATIENCE_S)) as records:
            return await read_both(records.bus, dgd, limit, stop)

    decisions, acks = run_until_stopped(main)
    rows = [_row(d, fate) for d, fate in zip(decisions, fates(decisions, acks, time.time()), strict=True)]
    columns = COLUMNS if dgd is None else tuple(c for c in COLUMNS if c.title != "dgd")
    output.show(rows, columns, as_json=as_json)


async def read_both(
    bus: Bus, dgd: str | None, limit: int, stop: asyncio.Event
) -> tuple[list[Decision], list[DecisionAck]]:
    """The newest `limit` decisions, and the acks that may be about them."""
    found = await newest(bus, DECISIONS, dgd, stop, lambda some: len(some) >= limit)
    decisions = {place(r): (r, m) for r, m in _decoded(found) if isinstance(r, Decision)}  # a repeat is the same record
    chosen = list(decisions.values())[-limit:]
    if not chosen:
        return [], []
    since = chosen[0][1].stored_at - _MARGIN_S
    heard = await newest(bus, ACKS, dgd, stop, lambda some: some[0].stored_at < since)
    return [record for record, _ in chosen], [r for r, _ in _decoded(heard) if isinstance(r, DecisionAck)]


def _decoded(found: Iterable[Message]) -> Iterable[tuple[Any, Message]]:
    for message in found:
        try:
            yield decode(message.stream, message.data), message
        except RecordError:
            continue  # whoever reads it for work reports it; `streams tail` shows it


def _row(decision: Decision, fate: Fate) -> dict[str, Any]:
    ack = fate.ack
    return {
        "dgd": decision.dgd,
        "decision_id": decision.decision_id,
        "epoch": decision.epoch,
        "issued_at": decision.issued_at,
        "previous": decision.previous,
        "targets": decision.targets,
        "reasons": decision.reasons,
        "advisory": decision.advisory,
        "status": str(fate.status),
        "executor": None if ack is None else ack.executor,
        "delay_s": None if ack is None else round(ack.at - decision.issued_at, 3),
        "counts": None if ack is None else ack.counts,
        "message": None if ack is None else ack.message,
    }


def _moves(row: Row) -> str:
    before = row["previous"]
    moves = ((role, before.get(role, "?"), n) for role, n in sorted(row["targets"].items()))
    return ", ".join(f"{role} {n}" if was == n else f"{role} {was}->{n}" for role, was, n in moves)


def _reasons(row: Row) -> str:
    reasons = dict(sorted(row["reasons"].items()))
    if len(set(reasons.values())) == 1:
        return str(next(iter(reasons.values())))
    return ", ".join(f"{role} {reason}" for role, reason in reasons.items())


COLUMNS = (
    Column("id", lambda row: str(row["decision_id"]), right=True),
    Column("epoch", lambda row: str(row["epoch"]), right=True, optional=True),
    Column("time", lambda row: output.when(row["issued_at"])),
    Column("dgd", lambda row: str(row["dgd"])),
    Column("targets", _moves),
    Column("reasons", _reasons, wrap=True),
    Column("status", lambda row: str(row["status"])),
    Column("executor", lambda row: row["executor"] or "-", optional=True),
    Column("delay", lambda row: output.duration(row["delay_s"]), optional=True),
    Column("advisory", lambda row: "yes" if row["advisory"] else "no", optional=True),
)
