"""What the lease bucket, the snapshots and the inputs say about who plans what."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import click

from headrace.connectors.bus.base import Bus, Message
from headrace.connectors.bus.partitions import partition_of
from headrace.schemas.codec import decode
from headrace.schemas.errors import BusError, RecordError
from headrace.schemas.state import PlannerState
from headrace.schemas.streams import FPM, INVENTORY, STATE, TRAFFIC, Stream
from headrace.streams.cli import output
from headrace.streams.cli.connect import SHORT_PATIENCE_S, Client, open_bus, run_until_stopped
from headrace.streams.cli.output import Column, Row
from headrace.streams.runtime.lease_terms import LEASES, bucket_of
from headrace.streams.runtime.node import INPUTS
from headrace.streams.runtime.shards import View
from headrace.streams.settings import Settings

AT_ONCE = 32  # DGDs that are asked about at a time
LOOK_S = 1.0
LATE = 2.0  # leases without a word: this one is gone


def _text(name: str, **how: Any) -> Column:
    return Column(name, lambda row: "-" if row[name] is None else str(row[name]), **how)


def _seconds(title: str, name: str) -> Column:
    return Column(title, lambda row: output.duration(row[name]), right=True)


COLUMNS = {
    "partitions": (
        _text("partition", right=True),
        Column("owner", lambda row: _owner(row)),
        _text("group", optional=True),
        Column("since", lambda row: output.when(row["since"]), optional=True),
        Column("DGDs", lambda row: str(len(row["dgds"])), right=True),
        _seconds("lag", "lag_s"),
        _seconds("age", "state_age_s"),
    ),
    "members": (
        _text("member"),
        _text("pid", right=True),
        Column("state", lambda row: row["state"]),
        _text("group", optional=True),
        _text("partitions", right=True),
        Column("DGDs", lambda row: str(row["planning"]), right=True),
        _seconds("heard", "heard_s"),
        Column("since", lambda row: output.when(row["since"]), optional=True),
        _text("version", optional=True),
    ),
    "dgds": (
        _text("dgd"),
        _text("partition", right=True),
        Column("owner", lambda row: _owner(row)),
        _text("epoch", right=True),
        _seconds("lag", "lag_s"),
        _seconds("age", "state_age_s"),
    ),
}


def show_shards(settings: Settings, what: str, dgd: str | None, *, as_json: bool) -> None:
    """Print the table, or everything as JSON. Raises BusError when the bus cannot be reached."""
    found = run_until_stopped(lambda _: _look(settings, dgd))
    if as_json:
        output.write(output.to_json(found, pretty=output.on_terminal()))
        return
    output.show(found[what], COLUMNS[what], as_json=False)
    if not found["members"]:
        click.echo("No planner has been heard of in the last minute: start `headrace run`.", err=True)


def _owner(row: Row) -> str:
    return "-" if row["owner"] is None else f"{row['owner']}{'' if row['owner_alive'] else ' (silent)'}"


async def _look(settings: Settings, only: str | None) -> dict[str, Any]:
    async with open_bus(settings, Client("shards", patience_s=SHORT_PATIENCE_S)) as records:
        bus = records.bus
        view = await _view(bus)
        dgds = {only} if only is not None else await _known(bus)
        at_once = asyncio.Semaphore(AT_ONCE)
        looks = await asyncio.gather(*(_dgd(bus, dgd, at_once) for dgd in sorted(dgds)))
    return overview(view, looks, settings.edges.shards.partitions, time.time())


async def _view(bus: Bus) -> View:
    """The lease bucket as it is; empty where nobody has made one."""
    view, bucket = View(), bucket_of(bus)
    try:
        end = (await bucket.info(LEASES)).last_position
    except BusError:
        if not bus.connected:
            raise
        return view
    reader, position = await bucket.read(LEASES, after=0), 0
    while position < end:
        messages = await reader.next(timeout=LOOK_S)
        for message in messages:
            view.take(message, 0.0)
        position = messages[-1].position if messages else end
    await reader.close()
    return view


async def _known(bus: Bus) -> set[str]:
    """DGDs that have been planned, or have spoken."""
    found: set[str] = set()
    for stream in (STATE, INVENTORY, FPM, TRAFFIC):
        try:
            found |= await bus.keys(stream)
        except BusError:
            if not bus.connected:
                raise
    return found


async def _dgd(bus: Bus, dgd: str, at_once: asyncio.Semaphore) -> dict[str, Any]:
    async with at_once:
        last = await _last(bus, STATE, dgd)
        state = _state(last)
        newest = {stream.name: await _last(bus, stream, dgd) for stream in INPUTS}
    behind = [m for name, m in newest.items() if m and m.position > (state.positions.get(name, 0) if state else 0)]
    taken = last.stored_at if last is not None else None
    return {
        "dgd": dgd,
        "epoch": state.epoch if state is not None else None,
        "stored_at": taken,
        "lag_s": None if taken is None else max((m.stored_at - taken for m in behind), default=0.0),
    }


async def _last(bus: Bus, stream: Stream, dgd: str) -> Message | None:
    try:
        return await bus.last(stream, dgd)
    except BusError:
        if not bus.connected:
            raise
        return None


def _state(message: Message | None) -> PlannerState | None:
    try:
        record = None if message is None else decode(STATE, message.data)
    except RecordError:
        return None
    return record if isinstance(record, PlannerState) else None


def overview(view: View, looks: Iterable[dict[str, Any]], partitions: int, now: float) -> dict[str, Any]:
    """Members, partitions and DGDs as rows. `looks` are what was found of each DGD; `now` in seconds since 1970."""
    silent = {m for m, heard in view.members.items() if now - heard.at > LATE * heard.member.lease_s}
    rows = []
    for look in looks:
        partition = partition_of(look["dgd"], partitions)
        shard = _shard_of(view, look["dgd"], partition)
        held = view.claims.get(shard) if shard is not None else None
        owner = held.claim.member if held is not None else None
        age_s = None if look["stored_at"] is None else max(0.0, now - look["stored_at"])
        lag_s = None if look["lag_s"] is None else max(0.0, look["lag_s"])
        alive = owner in view.members and owner not in silent
        rows.append(
            {"dgd": look["dgd"], "partition": partition, "group": shard and shard[0], "owner": owner}
            | {"owner_alive": alive, "epoch": look["epoch"], "lag_s": lag_s, "state_age_s": age_s}
        )
    return {"members": _members(view, silent, now), "partitions": _partitions(view, rows, silent), "dgds": rows}


def _shard_of(view: View, dgd: str, partition: int) -> tuple[str, int] | None:
    """The shard that a DGD belongs to: of those who plan it alone, or else of a group with many."""
    alone = {h.member.group: h.member.alone for h in view.members.values() if h.member.alone is not None}
    own = [group for group, name in alone.items() if name == dgd]
    groups = own or sorted({group for group, _ in view.claims} - set(alone))
    return next(((group, partition) for group in groups if (group, partition) in view.claims), None)


def _members(view: View, silent: set[str], now: float) -> list[dict[str, Any]]:
    owned = [held.claim.member for held in view.claims.values()]
    return [
        {
            "member": name,
            "state": "silent" if name in silent else "leaving" if heard.member.leaving else "alive",
            "group": heard.member.group,
            "host": heard.member.host,
            "pid": heard.member.pid,
            "version": heard.member.version,
            "since": heard.member.since,
            "partitions": owned.count(name),
            "planning": heard.member.planning,
            "heard_s": max(0.0, now - heard.at),
        }
        for name, heard in sorted(view.members.items())
    ]


def _partitions(view: View, rows: list[dict[str, Any]], silent: set[str]) -> list[dict[str, Any]]:
    shards = {(held.claim.group, held.claim.partition): held for held in view.claims.values()}
    nobodys = {(None, row["partition"]) for row in rows if row["owner"] is None}
    found = []
    for group, partition in sorted({*shards, *nobodys}, key=lambda s: (s[1], s[0] or "")):
        mine = [row for row in rows if (row["group"], row["partition"]) == (group, partition)]
        held = shards.get((group, partition)) if group is not None else None
        owner = None if held is None else held.claim.member
        lags = [row["lag_s"] for row in mine if row["lag_s"] is not None]
        ages = [row["state_age_s"] for row in mine if row["state_age_s"] is not None]
        found.append(
            {"partition": partition, "group": group, "owner": owner}
            | {"owner_alive": owner in view.members and owner not in silent, "since": held and held.claim.since}
            | {"dgds": [row["dgd"] for row in mine], "lag_s": max(lags, default=None)}
            | {"state_age_s": max(ages, default=None)}
        )
    return found
