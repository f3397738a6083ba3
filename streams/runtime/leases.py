"""Ownership of partitions by leases in a key-value bucket: of NATS, or of the in-memory bus.

A process holds one lease, its membership, which it renews six times within `lease_s`. A claim on a partition is stored
by compare-and-set on the revision of the claim before it, and is worth as much as its member's lease. So a renewal is
one write, however many partitions a process owns. What a lease cannot do, keep a paused process from writing, the
broker does: every snapshot and decision is compare-and-append (decision 0004).
"""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterable

import msgspec

from headrace import __version__
from headrace.connectors.bus.base import Bus, Message, Outgoing, Reader
from headrace.schemas.errors import BusError, Fenced
from headrace.streams.runtime.lease_terms import LEASES, Host, LeaseOptions, bucket_of
from headrace.streams.runtime.shards import DELETED, Claim, Member, Shard, View, assign, claim_key, member_key

log = logging.getLogger("headrace.shards")

REFRESH_S = 20.0  # a claim is written again before the broker forgets it
MOVES = 8  # partitions that one process hands over at a time
SETTLE_S = 0.5  # others that start with us are seen before anything is taken
FEW = 4  # partitions that are not worth waiting for others
RETRY_S = 1.0


class Leases:
    """Keeps our lease, follows everybody's, and gives the host what it shall own."""

    def __init__(self, bus: Bus, options: LeaseOptions, host: Host, clock: Callable[[], float] = time.time) -> None:
        self._bus = bucket_of(bus)
        self._options = options
        self._host = host
        self._clock = clock
        self._since = clock()
        self._leaving = False
        self._changed = asyncio.Event()
        self._written_at: dict[int, float] = {}  # owned partition -> when its claim was written, loop time
        self._going: dict[int, asyncio.Task[None]] = {}  # partitions that are being given up
        self._lonely = False
        self._alive: set[str] = set()
        self._calm_at = 0.0
        self.view = View(me=options.name)
        self.echo_at: float | None = None  # loop time at which our last renewal came back
        self.moved_in = 0  # partitions that were taken since the start
        self.moved_out = 0  # partitions that were given up or lost

    @property
    def owned(self) -> list[int]:
        return sorted(self._written_at)

    @property
    def held(self) -> bool:
        """Has our lease been renewed in time?"""
        now = asyncio.get_running_loop().time()
        return self.echo_at is not None and now - self.echo_at < self._options.lease_s

    def wake(self) -> None:
        """Look again: the host knows of other partitions."""
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Take part until `stop` is set, then hand over what is owned. Raises BusError at the start."""
        await self._bus.ensure([LEASES])
        reader = await self._bus.read(LEASES, after=0)
        await self._catch_up(reader)
        renewing = asyncio.create_task(self._renew())
        tasks = [asyncio.create_task(self._follow(reader)), renewing]
        try:
            await self._settle(stop)
            while not stop.is_set():
                self._changed.clear()
                await self._act()
                await self._pause(stop)
            await self._hand_over()
            renewing.cancel()  # a renewal after the end would make us a member again
            await asyncio.wait((renewing,), timeout=self._options.renew_s)
            await self._end()
        finally:
            for task in (*tasks, *self._going.values()):
                task.cancel()
            await asyncio.gather(*tasks, *self._going.values(), return_exceptions=True)
            await reader.close()

    # -- our own lease ----------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew, also while the last partitions are handed over."""
        while True:
            try:
                await self._say()
            except BusError as e:
                log.warning("the lease could not be renewed: %s", e)
            await asyncio.sleep(self._options.renew_s)

    async def _say(self) -> None:
        o = self._options
        member = Member(
            id=o.name,
            group=o.group,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            lease_s=o.lease_s,
            leaving=self._leaving,
            alone=o.alone,
            planning=self._host.planning(),
        )
        await self._bus.publish(Outgoing(LEASES.name, member_key(o.name), msgspec.json.encode(member)))

    async def _settle(self, stop: asyncio.Event) -> None:
        """Wait until we have heard ourselves; where there is much to take, also for others that start with us."""
        while self.view.echo_at is None and not stop.is_set():
            await self._pause(stop)
            self._changed.clear()
        if len(self._host.partitions()) > FEW and not stop.is_set():
            await asyncio.sleep(SETTLE_S * random.uniform(1.0, 1.5))

    async def _pause(self, stop: asyncio.Event) -> None:
        stopping, changed = asyncio.create_task(stop.wait()), asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait((stopping, changed), timeout=self._options.lease_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            changed.cancel()

    # -- what the others say ----------------------------------------------------------------------------------------

    async def _catch_up(self, reader: Reader) -> None:
        end = (await self._bus.info(LEASES)).last_position
        position = 0
        while position < end:
            messages = await reader.next(timeout=self._options.renew_s)
            if not messages:
                return  # the rest has vanished
            self._take(messages)
            position = messages[-1].position

    async def _follow(self, reader: Reader) -> None:
        while True:
            try:
                self._take(await reader.next())
            except BusError as e:
                log.warning("the leases cannot be followed: %s", e)
                await asyncio.sleep(RETRY_S)
                reader = await self._bus.read(LEASES, after=0)

    def _take(self, messages: Iterable[Message]) -> None:
        before = self.view.echo_at
        for message in messages:
            self.view.take(message, 2 * self._options.renew_s)
        if self.view.echo_at != before:
            self.echo_at = asyncio.get_running_loop().time()
        self._changed.set()

    # -- partitions -------------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        """Give up what is lost, hand over what is another's, take what is ours."""
        o, view = self._options, self.view
        held = view.held(o.group)
        for p in self.owned:
            if held.get(p, o.name) != o.name and p not in self._going:
                log.warning("partition %d is %s's now", p, held[p])
                self._give_up(p, release=False)
        alive = {m.id for m in view.alive(o.group)}
        wanted = assign(self._host.partitions(), alive, {p: m for p, m in held.items() if m in alive})
        if self._calm(alive):
            for p in {*self._written_at, *(p for p, m in held.items() if m == o.name)}:
                if wanted.get(p) != o.name and p not in self._going and len(self._going) < MOVES:
                    self._give_up(p, release=True)
        mine = [p for p, m in wanted.items() if m == o.name and p not in self._going]
        self._stand_by(bool(wanted) and not mine and not self._written_at)
        await asyncio.gather(*(self._claim(p) for p in mine if self._is_due(p, held.get(p))))

    def _is_due(self, p: int, holder: str | None) -> bool:
        """Shall a claim be written? One that lives and must give a partition up says so by releasing it."""
        if p not in self._written_at:
            return holder is None or holder == self._options.name or not self.view.leased(holder)
        return holder is None or asyncio.get_running_loop().time() - self._written_at[p] > REFRESH_S

    def _calm(self, alive: set[str]) -> bool:
        """Have no members come or gone lately? Many that start together are then one change, not many."""
        now = asyncio.get_running_loop().time()
        if alive != self._alive:
            self._alive, self._calm_at = alive, now + SETTLE_S * random.uniform(0.5, 1.0)
        return now >= self._calm_at

    def _stand_by(self, now: bool) -> None:
        if now and not self._lonely:
            log.info("standing by as %s: others plan all there is", self._options.name)
        self._lonely = now

    async def _claim(self, p: int) -> None:
        """Take a partition, or say once more that it is ours."""
        o = self._options
        shard: Shard = (o.group, p)
        before = self.view.claims.get(shard)
        since = before.claim.since if before is not None and p in self._written_at else self._clock()
        claim = Claim(group=o.group, partition=p, member=o.name, since=since)
        out = Outgoing(LEASES.name, claim_key(shard), msgspec.json.encode(claim))
        try:
            position = await self._bus.publish(out, expect_last=self.view.revision(shard))
        except Fenced:
            await self._look(shard)
            return
        except BusError as e:
            log.warning("partition %d could not be claimed: %s", p, e)
            return
        self.view.put(claim, position)
        known = p in self._written_at
        self._written_at[p] = asyncio.get_running_loop().time()
        if not known:
            self.moved_in += 1
            self._host.gained(p)

    async def _look(self, shard: Shard) -> None:
        """Somebody else was first, or the broker has forgotten what we know of."""
        try:
            last = await self._bus.last(LEASES, claim_key(shard))
        except BusError:
            return
        if last is None:
            self.view.forget(shard)
        else:
            self.view.take(last, 0.0)
        self._changed.set()

    def _give_up(self, p: int, *, release: bool) -> None:
        self._going[p] = asyncio.create_task(self._give_up_in_peace(p, release))

    async def _give_up_in_peace(self, p: int, release: bool) -> None:
        try:
            await self._host.lost(p)
            if release:
                await self._release(p)
        finally:
            self.moved_out += 1
            self._written_at.pop(p, None)
            self._going.pop(p, None)
            self._changed.set()

    async def _release(self, p: int) -> None:
        """Let others have it at once. A claim that is not ours any more stays."""
        shard: Shard = (self._options.group, p)
        held = self.view.claims.get(shard)
        if held is None or held.claim.member != self._options.name:
            return
        gone = Outgoing(LEASES.name, claim_key(shard), b"", dict((DELETED,)))
        try:
            self.view.released(shard, await self._bus.publish(gone, expect_last=self.view.revision(shard)))
        except BusError as e:
            log.info("partition %d was not released: %s", p, e)

    async def _hand_over(self) -> None:
        """Give up everything at once."""
        self._leaving = True
        if not self._bus.connected:
            await asyncio.gather(*(self._host.lost(p) for p in self.owned))
            return
        await self._say()
        for p in self.owned:
            if p not in self._going:
                self._give_up(p, release=True)
        await asyncio.gather(*self._going.values())

    async def _end(self) -> None:
        """Be no member any more; where the bus is away, the lease runs out."""
        if self._bus.connected:
            await self._bus.publish(Outgoing(LEASES.name, member_key(self._options.name), b"", dict((DELETED,))))
