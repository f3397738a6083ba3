"""`headrace shards` beside a service that plans: what it says is what is."""

import asyncio
import json
import time
from pathlib import Path

import msgspec
import pytest
import world
from bus_support import eventually
from cli_site import Site, bus_at
from nats_support import nats_server

from headrace.connectors.bus.partitions import partition_of
from headrace.connectors.bus.records import RecordBus
from headrace.streams.runtime.clock import ScaledClock
from headrace.streams.runtime.service import Service
from headrace.streams.settings import settings

DGDS = [f"shop/d{i}" for i in range(5)]
CONFIG = {"dgds": ["shop/*"], "enable_load_scaling": True, "load_adjustment_interval_seconds": 1}


async def speak(records: RecordBus, dgd: str) -> None:
    await records.publish(msgspec.structs.replace(world.inventory(time.time(), prefill=1, decode=1), dgd=dgd))


async def test_it_shows_processes_partitions_and_dgds(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with nats_server(tmp_path / "nats") as server:
        site.write({**CONFIG, "bus": server.url})
        nobody = await asyncio.to_thread(site.run, "shards", "-c", "planner.yaml", "--json")
        assert json.loads(nobody.stdout) == {"members": [], "partitions": [], "dgds": []}
        async with bus_at(server.url) as records:
            for dgd in DGDS:
                await speak(records, dgd)
            ticked: set[str] = set()
            service = Service(settings(CONFIG), records, ScaledClock(), lambda said: ticked.update(r.dgd for r in said))
            stop = asyncio.Event()
            running = asyncio.create_task(service.run(stop))
            await eventually(lambda: ticked == set(DGDS))
            shown = await asyncio.to_thread(site.run, "shards", "-c", "planner.yaml", "--json")
            table = await asyncio.to_thread(site.run, "shards", "-c", "planner.yaml", "--dgds")
            stop.set()
            await running
            for dgd in DGDS:
                await speak(records, dgd)
            after = await asyncio.to_thread(site.run, "shards", "-c", "planner.yaml", "--json")
    found = json.loads(shown.stdout)
    (member,) = found["members"]
    partitions = sorted({partition_of(dgd) for dgd in DGDS})
    assert (member["state"], member["partitions"], member["planning"]) == ("alive", len(partitions), len(DGDS))
    assert [row["partition"] for row in found["partitions"]] == partitions
    assert {row["owner"] for row in found["partitions"]} == {member["member"]}
    assert [row["dgd"] for row in found["dgds"]] == DGDS
    assert all(row["epoch"] == 1 and row["owner_alive"] and row["state_age_s"] < 60 for row in found["dgds"])
    assert table.stdout.splitlines()[0] == "dgd\tpartition\towner\tepoch\tlag\tage"
    assert len(table.stdout.splitlines()) == 1 + len(DGDS)
    left = json.loads(after.stdout)
    assert left["members"] == []
    assert all(row["owner"] is None and row["lag_s"] > 0 for row in left["dgds"])


async def test_without_a_bus_it_says_so(tmp_path: Path) -> None:
    found = await asyncio.to_thread(Site(tmp_path).run, "shards", "--bus", "nats://127.0.0.1:9?patience_s=0.5")
    assert found.returncode == 3
    assert "could not be reached" in found.stderr


@pytest.mark.parametrize("what", ["--members", "--dgds"])
async def test_each_table_has_a_heading_even_when_it_is_empty(tmp_path: Path, what: str) -> None:
    with nats_server(tmp_path / "nats") as server:
        found = await asyncio.to_thread(Site(tmp_path).run, "shards", "--bus", server.url, what)
    assert found.returncode == 0
    assert found.stdout.count("\n") == 1
    assert "start `headrace run`" in found.stderr
