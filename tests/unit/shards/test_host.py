"""The planners of what is owned: started, ended, and started again; one that fails disturbs nobody else."""

import asyncio
from collections import Counter

import pytest
from bus_support import eventually

from headrace.schemas.errors import BusError, Fenced
from headrace.streams.runtime import shard_host
from headrace.streams.runtime.shard_host import ShardHost

DGDS = [f"team/d{i}" for i in range(6)]


class Town:
    """Plans by waiting; fails where it is told to."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.ended: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.elsewhere: set[str] = set()
        self.host = ShardHost(lambda dgd: int(dgd[-1]) % 2, self.plan, self.elsewhere.__contains__, self.ended.append)

    async def plan(self, dgd: str, stop: asyncio.Event) -> None:
        self.starts[dgd] += 1
        if dgd in self.errors:
            raise self.errors[dgd]
        self.running.add(dgd)
        try:
            await stop.wait()
        finally:
            self.running.discard(dgd)


@pytest.fixture
def town(monkeypatch: pytest.MonkeyPatch) -> Town:
    monkeypatch.setattr(shard_host, "FIRST_RETRY_S", 0.01)
    return Town()


async def test_the_dgds_of_what_is_owned_are_planned_and_no_others(town: Town) -> None:
    assert town.host.discovered(DGDS[:4])
    assert town.host.partitions() == [0, 1]
    town.host.gained(0)
    await eventually(lambda: town.running == {DGDS[0], DGDS[2]})
    assert not town.host.discovered(DGDS)  # no new partition
    await eventually(lambda: town.running == {DGDS[0], DGDS[2], DGDS[4]})
    assert town.host.planning() == 3
    await town.host.lost(0)
    assert town.running == set()
    assert sorted(town.ended) == [DGDS[0], DGDS[2], DGDS[4]]
    town.host.gained(0)
    await eventually(lambda: len(town.running) == 3)
    await town.host.close()
    assert town.host.units == {}


@pytest.mark.parametrize("error", [BusError("gone"), Fenced("another"), ValueError("a bug")])
async def test_one_that_fails_is_tried_again_and_disturbs_nobody(town: Town, error: Exception) -> None:
    town.host.discovered(DGDS[::2])
    town.errors[DGDS[0]] = error
    town.host.gained(0)
    await eventually(lambda: town.starts[DGDS[0]] >= 3)
    assert town.running == {DGDS[2], DGDS[4]}
    assert town.starts[DGDS[2]] == 1
    del town.errors[DGDS[0]]
    await eventually(lambda: DGDS[0] in town.running)
    await town.host.close()


async def test_a_dgd_that_others_plan_alone_is_left_to_them_as_long_as_they_do(town: Town) -> None:
    town.elsewhere.add(DGDS[0])
    town.host.discovered(DGDS[:1])
    town.host.gained(0)
    await eventually(lambda: town.host.units[DGDS[0]].failure)
    assert town.starts[DGDS[0]] == 0
    town.elsewhere.clear()
    await eventually(lambda: DGDS[0] in town.running)
    await town.host.close()
