"""Who shall own which partition, and what a process knows of the others. No I/O: both follow from what was read.

Time is told by the log: a process counts how long another has been silent between its own renewals as they come back
from the broker. So no two clocks are compared, and while the broker or the own connection is down nobody grows silent.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from headrace.connectors.bus.base import Message

FORGET = 20  # leases of silence, after which nobody asks any more who that was
DELETED = ("KV-Operation", "DEL")  # the header of a key that was given up, as every NATS client writes it


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A process that plans, as it says so itself at each renewal."""

    id: str
    group: str  # of processes with the same DGDs; only they take over from each other
    host: str
    pid: int
    version: str
    since: float  # seconds since 1970, by its own clock
    lease_s: float
    leaving: bool = False  # it hands over what it has
    alone: str | None = None  # the only DGD that it plans
    planning: int = 0  # DGDs that it plans at this moment


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says when it takes a partition."""

    group: str
    partition: int
    member: str
    since: float  # seconds since 1970, by its own clock


@dataclass(slots=True)
class Heard:
    """A member, and for how long nothing was heard of it while we were heard."""

    member: Member
    at: float  # when the broker stored its last renewal, seconds
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that is in force, and its revision: who wants it must name that."""

    claim: Claim
    position: int


Shard = tuple[str, int]  # group and partition


def member_key(member: str) -> str:
    return f"members/{member}"


def claim_key(shard: Shard) -> str:
    return f"claims/{shard[0]}-{shard[1]}"


@dataclass(slots=True)
class View:
    """What the lease bucket holds, kept up with :meth:`take`. `me` is empty for somebody who only looks."""

    me: str = ""
    members: dict[str, Heard] = field(default_factory=dict)
    claims: dict[Shard, Held] = field(default_factory=dict)
    echo_at: float | None = None  # when the broker stored our last renewal, seconds
    _keys: dict[str, int] = field(default_factory=dict)  # key -> newest position that was taken
    _shards: dict[str, Shard] = field(default_factory=dict)

    def take(self, message: Message, longest_s: float) -> None:
        """Take one message of the bucket in. Between two of our renewals at most `longest_s` count as silence."""
        if message.position <= self._keys.get(message.key, 0):
            return
        self._keys[message.key] = message.position
        deleted = message.headers.get(DELETED[0]) is not None
        kind, _, name = message.key.partition("/")
        try:
            if kind == "members":
                member = None if deleted else msgspec.json.decode(message.data, type=Member)
                self._member(name, member, message.stored_at, longest_s)
            elif kind == "claims":
                self._claim(message, None if deleted else msgspec.json.decode(message.data, type=Claim))
        except msgspec.MsgspecError:  # of a stranger, or of a later version: nobody's
            self.claims.pop(self._shards.pop(message.key, ("", -1)), None)

    def _member(self, name: str, member: Member | None, at: float, longest_s: float) -> None:
        if member is None:
            self.members.pop(name, None)
            return
        self.members[name] = Heard(member, at)
        if name != self.me:
            return
        gap_s = 0.0 if self.echo_at is None else min(max(0.0, at - self.echo_at), longest_s)
        self.echo_at = at
        for other in list(self.members.values()):
            other.silent_s += gap_s if other.member.id != self.me else 0.0
            if other.silent_s > FORGET * other.member.lease_s:
                del self.members[other.member.id], self._keys[member_key(other.member.id)]

    def _claim(self, message: Message, claim: Claim | None) -> None:
        if claim is None:
            self.claims.pop(self._shards.pop(message.key, ("", -1)), None)
            return
        self.put(claim, message.position)

    def put(self, claim: Claim, position: int) -> None:
        """A claim that is known to be stored."""
        shard = claim.group, claim.partition
        key = claim_key(shard)
        if position >= self._keys.get(key, 0):
            self._keys[key], self._shards[key] = position, shard
            self.claims[shard] = Held(claim, position)

    def released(self, shard: Shard, position: int) -> None:
        """A claim that is known to be given up."""
        self._keys[claim_key(shard)] = max(position, self._keys.get(claim_key(shard), 0))
        self.claims.pop(shard, None)

    def forget(self, shard: Shard) -> None:
        """The broker does not know this claim any more."""
        self._keys.pop(claim_key(shard), None)
        self.claims.pop(shard, None)

    def revision(self, shard: Shard) -> int:
        """What the next claim on it must name: the position of the newest word about it, 0 where there is none."""
        return self._keys.get(claim_key(shard), 0)

    def leased(self, member: str) -> bool:
        """Has it renewed its lease in time, as far as we can tell?"""
        heard = self.members.get(member)
        return heard is not None and (member == self.me or heard.silent_s < heard.member.lease_s)

    def alive(self, group: str) -> list[Member]:
        """The members of a group that may own something, ourselves included once we have heard ourselves."""
        found = (h.member for h in self.members.values() if self.leased(h.member.id))
        return [m for m in found if m.group == group and not m.leaving]

    def alone(self, group: str) -> set[str]:
        """DGDs that have planners of their own, outside of the group."""
        found = (h.member for h in self.members.values() if self.leased(h.member.id))
        return {m.alone for m in found if m.alone is not None and m.group != group}

    def held(self, group: str) -> dict[int, str]:
        """Partition -> member, whether that one lives or not."""
        return {p: held.claim.member for (g, p), held in self.claims.items() if g == group}


@lru_cache(maxsize=65_536)
def _score(member: str, partition: int) -> int:
    """How much a member is meant for a partition (rendezvous hashing): the same number in every process."""
    return int.from_bytes(hashlib.blake2b(f"{member} {partition}".encode(), digest_size=8).digest(), "big")


def assign(partitions: Collection[int], members: Collection[str], held: Mapping[int, str]) -> dict[int, str]:
    """Partition -> member: even to within one, and with as few moves as that allows.

    A member keeps what it holds up to its share, of that what it is meant for most; what is free goes to the member
    with room that is meant for it most. The same arguments give the same answer in every process.
    """
    if not members:
        return {}
    having = {m: [p for p in partitions if held.get(p) == m] for m in members}
    share, more = divmod(len(partitions), len(members))
    order = sorted(members, key=lambda m: (-len(having[m]), m))
    room = {m: share + (i < more) for i, m in enumerate(order)}
    found: dict[int, str] = {}
    for m in order:
        for p in sorted(having[m], key=lambda p: (-_score(m, p), p))[: room[m]]:
            found[p] = m
        room[m] -= min(room[m], len(having[m]))
    for p in sorted(set(partitions) - set(found)):
        best = max((m for m in order if room[m] > 0), key=lambda m: (_score(m, p), m))
        found[p] = best
        room[best] -= 1
    return found
