"""Leases: every partition has an owner, evenly, whoever comes, goes, dies, sleeps or loses the bus."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import nats
import pytest
from bus_support import eventually
from lease_support import LEASE_S, Town, town_on
from nats_support import Proxy, fresh_prefix, kill_server, nats_server

from headrace.connectors.bus.base import Bus
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.memory import MemoryBroker, MemoryBus
from headrace.connectors.bus.nats import NatsBus

PARTITIONS = range(16)
LONG_S = 2.5  # a lease longer than connecting anew takes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNats]:
    with nats_server(tmp_path_factory.mktemp("nats"), store_bytes=1024 * 1024**3) as server:
        yield server


@pytest.fixture(params=["memory", "nats"])
async def town(request: pytest.FixtureRequest, server: EmbeddedNats) -> AsyncIterator[Town]:
    broker, prefix = MemoryBroker(), fresh_prefix()

    def connect() -> Bus:
        return MemoryBus(broker) if request.param == "memory" else NatsBus(server.url, prefix)

    async with town_on(connect, PARTITIONS) as town:
        yield town


async def test_processes_that_start_together_share_what_there_is(town: Town) -> None:
    three = [await town.start(name) for name in "abc"]
    assert sorted(await town.settled(*three)) == [5, 5, 6]
    assert all(owner.overlaps == 0 for owner in town.owners)
    assert all(p.leases.held for p in three)


async def test_a_newcomer_gets_its_share_and_no_more_moves(town: Town) -> None:
    first, second = await town.start("a"), await town.start("b")
    await town.settled(first, second)
    before = [set(p.owner.owned) for p in (first, second)]
    third = await town.start("c")
    await town.settled(first, second, third)
    assert first.owner.owned < before[0]
    assert second.owner.owned < before[1]
    assert third.leases.moved_in == len(third.owner.owned) == 5
    assert all(owner.overlaps == 0 for owner in town.owners)


async def test_what_a_killed_one_had_is_taken_over_when_its_lease_has_run_out(town: Town) -> None:
    three = [await town.start(name) for name in "abc"]
    await town.settled(*three)
    kept = [set(p.owner.owned) for p in three[1:]]
    await three[0].killed()
    await town.settled(*three[1:])
    assert kept[0] < three[1].owner.owned
    assert kept[1] < three[2].owner.owned


async def test_one_that_is_stopped_hands_over_as_soon_as_its_planners_have_ended(town: Town) -> None:
    first, second = await town.start("a"), await town.start("b")
    await town.settled(first, second)
    first.owner.may_stop.clear()
    leaving = asyncio.create_task(first.stopped())
    await asyncio.sleep(2.5 * LEASE_S)  # however long that takes, while it renews its lease
    assert len(second.owner.owned) == 8
    assert not leaving.done()
    first.owner.may_stop.set()
    await leaving
    await town.settled(second)
    assert all(owner.overlaps == 0 for owner in town.owners)
    await eventually(lambda: "a" not in second.leases.view.members)


async def test_one_that_slept_gives_up_what_others_have_taken(town: Town) -> None:
    first, second = await town.start("a"), await town.start("b")
    await town.settled(first, second)
    real = first.leases._bus.publish

    async def nothing(*_: object, **__: object) -> int:
        return 0

    first.leases._bus.publish = nothing  # type: ignore[method-assign]
    await eventually(lambda: len(second.owner.owned) == 16)
    await eventually(lambda: not first.owner.owned)
    first.leases._bus.publish = real  # type: ignore[method-assign]
    await town.settled(first, second)


async def test_new_partitions_are_taken_as_they_appear_and_those_without_dgds_are_nobodys(town: Town) -> None:
    town.partitions = [3]
    first, second = await town.start("a"), await town.start("b")
    await eventually(lambda: len(first.owner.owned | second.owner.owned) == 1)
    assert first.leases.owned + second.leases.owned == [3]
    for process in (first, second):
        process.owner.wanted = town.partitions = list(range(10))
        process.leases.wake()
    assert await town.settled(first, second) == [5, 5]


async def test_groups_do_not_know_each_other_but_for_the_dgds_that_one_plans_alone(town: Town) -> None:
    first, other = await town.start("a"), await town.start("b", "ml_llama", "ml/llama")
    await town.settled(first)
    await town.settled(other)
    assert first.leases.view.alone("main") == {"ml/llama"}
    assert other.leases.view.alone("ml_llama") == set()
    await other.stopped()
    await eventually(lambda: first.leases.view.alone("main") == set())


async def test_while_the_broker_is_away_nobody_loses_anything(tmp_path_factory: pytest.TempPathFactory) -> None:
    with nats_server(tmp_path_factory.mktemp("own")) as own:
        async with town_on(lambda: NatsBus(own.url), PARTITIONS) as town:
            town.lease_s = LONG_S
            both = [await town.start(name) for name in "ab"]
            await town.settled(*both)
            before = [set(p.owner.owned) for p in both]
            await asyncio.to_thread(kill_server, own)
            await asyncio.sleep(LONG_S + 0.5)
            assert not both[0].leases.held
            await asyncio.to_thread(own.start)
            await eventually(lambda: all(p.leases.held for p in both))
            await asyncio.sleep(LONG_S + 0.5)
            assert [p.owner.owned for p in both] == before
            assert [p.leases.moved_out for p in both] == [0, 0]


async def test_one_that_is_cut_off_loses_what_it_had_and_comes_back_as_a_newcomer(server: EmbeddedNats) -> None:
    prefix = fresh_prefix()
    async with Proxy(int(server.url.rpartition(":")[2])) as proxy:
        urls = iter([proxy.url, server.url])
        async with town_on(lambda: NatsBus(next(urls), prefix), PARTITIONS) as town:
            far, near = await town.start("far"), await town.start("near")
            await town.settled(far, near)
            proxy.refuse = True
            proxy.cut()
            await eventually(lambda: len(near.owner.owned) == 16)
            assert len(far.owner.owned) == 8  # it cannot know; the broker fences its planners
            proxy.refuse = False
            await town.settled(far, near)
            assert far.leases.moved_in >= 8


async def test_any_nats_client_can_look_into_the_bucket(server: EmbeddedNats) -> None:
    prefix = fresh_prefix()
    async with town_on(lambda: NatsBus(server.url, prefix), [1]) as town:
        process = await town.start("a")
        await town.settled(process)
        client = await nats.connect(server.url)
        bucket = await client.jetstream().key_value(f"{prefix}_shards")
        claim = await bucket.get("claims.main-1")
        assert json.loads(claim.value or b"")["member"] == "a"
        assert (await bucket.status()).ttl == 60
        await bucket.delete("claims.main-1")  # an operator may
        await eventually(lambda: process.leases.view.revision(("main", 1)) > (claim.revision or 0) + 1)
        await eventually(lambda: ("main", 1) in process.leases.view.claims)
        assert process.owner.owned == {1}
        await client.close()


async def test_garbage_in_the_bucket_is_nobodys(town: Town) -> None:
    process = await town.start("a")
    await town.settled(process)
    from headrace.connectors.bus.base import Outgoing

    for key in ("members/x", "claims/main-1", "claims/main-77", "what/ever"):
        await process.leases._bus.publish(Outgoing("shards", key, b"\xff junk"))
    second = await town.start("b")
    await town.settled(process, second)
