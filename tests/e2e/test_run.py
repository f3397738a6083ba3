"""`headrace run` as an operator has it: beside a live deployment, restarted, doubled, watching, with executors."""

import asyncio
import gzip
import json
import signal
import sys
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import world
from cli_site import DGD, Site, bus_at, live_config, read_all, until_there
from nats_support import kill_server, nats_server

from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.fpm import TOPIC, FpmEnvelope, encode_envelope, encode_fpm
from headrace.schemas.streams import ACKS, DECISIONS, INVENTORY, TICKS
from headrace.schemas.tick_report import TickReport
from headrace.streams.cli.main import EXIT_BUS
from headrace.streams.demo.processes import free_port


class Town:
    """A server, a folder for the processes, and a connection to look with."""

    def __init__(self, site: Site, url: str, records: RecordBus) -> None:
        self.site = site
        self.url = url
        self.records = records

    def configure(self, **more: Any) -> None:
        self.site.write(live_config(bus=self.url, **more))

    def run(self, *args: str) -> Any:
        return self.site.start("planner", "run", "-c", "planner.yaml", *args)

    def simulate(self, *args: str) -> Any:
        return self.site.start("simulator", "simulate", "-c", "planner.yaml", "--live", *args)

    async def applied(self, times: int) -> list[DecisionAck]:
        """The acks, once so many decisions have been carried out."""

        def enough(acks: list[DecisionAck]) -> bool:
            return sum(ack.status is AckStatus.APPLIED for ack in acks) >= times

        return await until_there(self.records, ACKS, enough)


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    site = Site(tmp_path)
    with nats_server(tmp_path / "nats") as server:
        async with bus_at(server.url) as records:
            yield Town(site, server.url, records)
            site.close()
        assert site.tracebacks() == []


@pytest.mark.slow
async def test_a_planner_that_is_started_again_goes_on_with_the_next_id(town: Town) -> None:
    town.configure()
    simulator = town.simulate()
    for life, end in ((1, signal.SIGTERM), (2, signal.SIGINT)):
        planner = town.run()
        await town.applied(times=life)
        assert town.site.stop(planner, end) == 0
    third = town.run()
    town.site.says("planner", "planning in epoch 3")
    assert town.site.stop(third) == 0
    assert town.site.stop(simulator) == 0
    decisions = await read_all(town.records, DECISIONS)
    assert [d.decision_id for d in decisions] == list(range(len(decisions)))
    assert sorted({d.epoch for d in decisions}) in ([1, 2], [1, 2, 3])


async def test_of_two_planners_the_second_stands_by_until_the_first_is_stopped(town: Town) -> None:
    town.configure()
    first = town.run()
    town.site.says("planner", "planning in epoch 1")
    second = town.site.start("second", "run", "-c", "planner.yaml")
    town.site.says("second", "standing by")
    assert first.poll() is None
    assert town.site.stop(first) == 0
    town.site.says("second", "planning in epoch 2")
    assert town.site.stop(second) == 0


async def test_of_two_planners_that_start_at_once_one_plans_and_the_other_takes_over_when_it_is_killed(
    town: Town,
) -> None:
    town.configure()
    names = ["planner0", "planner1"]
    both = [town.site.start(name, "run", "-c", "planner.yaml") for name in names]

    def planning() -> list[bool]:
        return ["planning in epoch" in town.site.log(name) for name in names]

    town.site.until(lambda: any(planning()), lambda: [town.site.log(name) for name in names])
    await asyncio.sleep(1.0)
    assert sum(planning()) == 1
    owner = planning().index(True)
    both[owner].kill()
    town.site.says(names[1 - owner], "planning in epoch 2")
    assert town.site.stop(both[1 - owner]) == 0


@pytest.mark.slow
async def test_advice_is_published_and_nobody_acts_on_it(town: Town) -> None:
    town.configure()
    planner, simulator = town.run("--advisory"), town.simulate()
    decisions = await until_there(town.records, DECISIONS, lambda found: len(found) >= 1)
    ticks = len(await read_all(town.records, TICKS))
    await until_there(town.records, TICKS, lambda found: len(found) >= ticks + 20)
    assert all(d.advisory for d in decisions)
    assert await read_all(town.records, ACKS) == []
    inventory = await town.records.last(INVENTORY, DGD)
    assert inventory is not None
    assert {role: (r.ready, r.starting) for role, r in inventory[0].roles.items()} == {  # type: ignore[attr-defined]
        "prefill": (1, 0),
        "decode": (1, 0),
    }
    report = (await read_all(town.records, TICKS))[-1]
    assert isinstance(report, TickReport)
    assert (report.advisory, report.outstanding) == (True, None)
    rows = json.loads(town.site.run("decisions", "list", "-c", "planner.yaml", "--json").stdout)
    assert all(row["advisory"] for row in rows)
    assert [town.site.stop(planner), town.site.stop(simulator)] == [0, 0]


# An executor that knows NATS alone: it asks the deployment for the targets, and waits until the inventory shows them.
SCALE = """
import asyncio, json, sys
import nats

async def main():
    decision = json.load(sys.stdin)
    wanted, shown = decision["targets"], asyncio.Event()
    async def look(message):
        roles = json.loads(message.data)["roles"]
        if all(roles[role]["ready"] == n and not roles[role]["draining"] for role, n in wanted.items()):
            shown.set()
    client = await nats.connect(sys.argv[1])
    await client.subscribe("headrace.inventory.ml.llama", cb=look)
    answer = await client.request("headrace.simulator.ml.llama", json.dumps({"targets": wanted}).encode(), timeout=5)
    reply = json.loads(answer.data)
    if not reply["ok"]:
        print(reply["message"], file=sys.stderr)
        sys.exit(75)
    await asyncio.wait_for(shown.wait(), 60)
    await client.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["another_process", "inside_run"])
async def test_a_script_carries_out_what_is_decided(town: Town, where: str) -> None:
    script = town.site.folder / "scale.py"
    script.write_text(SCALE)
    command = f"{sys.executable} {script} {town.url}"
    town.configure(**({"executor": {"exec": command}} if where == "inside_run" else {}))
    others = [town.simulate("--no-follow"), town.run()]
    name = "headrace.run"
    if where == "another_process":
        name = "script"
        args = ("decisions", "follow", "-c", "planner.yaml", "--exec", command, "--name", name)
        others.append(town.site.start("executor", *args))
    acks = await town.applied(times=2)
    assert {ack.executor for ack in acks} == {name}
    decisions = {d.decision_id: d for d in await read_all(town.records, DECISIONS)}
    for ack in acks:
        if ack.status is AckStatus.APPLIED:
            assert ack.counts == decisions[ack.decision_id].targets
    assert [town.site.stop(process) for process in reversed(others)] == [0] * len(others)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        page: str = answer.read().decode()
        return page


async def test_its_metrics_can_be_scraped(town: Town) -> None:
    town.configure()
    port = free_port()
    planner = town.site.start("planner", "run", "-c", "planner.yaml", PLANNER_PROMETHEUS_PORT=str(port))
    await until_there(town.records, TICKS, lambda found: len(found) >= 2)
    page = await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/metrics")
    assert 'headrace_planner_epoch{dgd="ml/llama"} 1.0' in page
    assert 'headrace_planner_replicas{dgd="ml/llama",role="decode"}' in page
    second = town.site.run("run", "-c", "planner.yaml", PLANNER_PROMETHEUS_PORT=str(port))
    assert second.returncode == 2
    assert f"metrics port {port} on 127.0.0.1: " in second.stderr
    assert planner.poll() is None
    assert town.site.stop(planner) == 0


@pytest.mark.slow
async def test_a_planner_whose_bus_has_gone_ends_in_peace_and_goes_on_later(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with nats_server(tmp_path / "nats") as server:
        sources = {"dynamo_fpm": {"namespace": "dynamo"}, "inventory": {"prefill": 1, "decode": 1}}
        site.write(live_config(bus=server.url, sources=sources, executor={"dry_run": True}))
        planner = site.start("planner", "run", "-c", "planner.yaml")
        site.says("planner", "planning in epoch 1")
        await asyncio.to_thread(kill_server, server)
        site.says("planner", "lost NATS")
        assert site.stop(planner) == 0
        await asyncio.to_thread(server.start)
        planner = site.start("planner", "run", "-c", "planner.yaml")
        site.says("planner", "planning in epoch 2")
        assert site.stop(planner) == 0
    assert site.tracebacks() == []


async def test_a_bus_that_is_away_at_the_start_is_an_error_of_its_own(tmp_path: Path) -> None:
    result = Site(tmp_path).run("run", "--bus", "nats://127.0.0.1:9?patience_s=0.5")
    assert result.returncode == EXIT_BUS
    assert result.stderr.count("\n") == 1
    assert "nats://127.0.0.1:9 could not be reached within 0.5 s" in result.stderr


async def test_what_is_recorded_is_replayed_to_the_same_bytes(tmp_path: Path) -> None:
    start = 1_700_000_000.0
    subject = f"namespace.dynamo.component.backend.endpoint.generate.{TOPIC}"
    with gzip.open(tmp_path / "fpm.jsonl.gz", "wt") as file:
        for n in range(300):
            at = start + 0.1 * n
            fpm = encode_fpm(world.fpm("11", n, wall=0.005 + 0.0001 * (n % 7), decode=(1 + n % 7, 500 + n)))
            data = encode_envelope(FpmEnvelope(7, n, int(1000 * at), TOPIC, fpm if n != 50 else b"junk"))
            file.write(json.dumps({"t": at, "subject": subject, "b64": b64encode(data).decode()}) + "\n")
        file.write("this is no line of a capture\n")
    site = Site(tmp_path)
    sources = {"dynamo_fpm": {"namespace": "dynamo"}, "replay": {"fpm": "fpm.jsonl.gz"}}
    site.write({"dgd": DGD, "mode": "decode", "load_adjustment_interval_seconds": 5, "sources": sources})
    first, second = (site.run("run", "-c", "planner.yaml") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    records = [json.loads(line) for line in first.stdout.splitlines()]
    letters = [r for r in records if r["schema"] == "headrace.deadletter.v1"]
    assert [letter["reason"] for letter in letters] == ["undecodable", "undecodable"]
    ticks = [r for r in records if r["schema"] == "headrace.tick_report.v1"]
    assert [t["at"] - start for t in ticks] == [5.0, 10.0, 15.0, 20.0, 25.0]
    assert ticks[-1]["counters"]["fpm_seen"] == 249
