"""What a lease is: where it is kept, how long it lives, and what it is good for."""

import os
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Protocol

from headrace.connectors.bus.base import Bus
from headrace.connectors.bus.nats import NatsBus
from headrace.schemas.base import Record
from headrace.schemas.streams import MiB, Stream

LEASES = Stream(
    "shards",
    Record,
    what="who owns which partition",
    written_by="planner",
    read_by="planner, headrace shards",
    may_write="the planner",
    keep_s=60.0,  # what nobody renews vanishes from the broker
    keep_bytes=16 * MiB,
)
RENEWALS = 6  # within a lease


class Host(Protocol):
    """What runs the planners of the partitions that are owned."""

    def partitions(self) -> Collection[int]:
        """Those that hold a DGD."""

    def gained(self, partition: int) -> None:
        """Begin to plan its DGDs."""

    async def lost(self, partition: int) -> None:
        """Stop planning them; when this returns nothing more is written."""

    def planning(self) -> int:
        """DGDs that are planned."""


def our_name() -> str:
    """Host, process id, and something that no process before had."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())
    return f"{host}-{os.getpid()}-{token_hex(3)}"


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """`group`: processes with the same DGDs. `alone`: the only DGD that they plan, if it is one."""

    group: str = "main"
    lease_s: float = 3.0
    alone: str | None = None
    name: str = field(default_factory=our_name)

    @property
    def renew_s(self) -> float:
        return self.lease_s / RENEWALS


def bucket_of(bus: Bus) -> Bus:
    """Where leases are kept: a KV bucket on NATS, a stream of the in-memory bus."""
    return bus.buckets() if isinstance(bus, NatsBus) else bus
