"""`headrace run` on Kafka as an operator has it: beside a live deployment, killed, followed on the command line."""

import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_site import Site, bus_at, live_config, read_all, until_there
from kafka_support import KafkaCluster, fresh_prefix
from nats_support import nats_server

from headrace.connectors.bus.records import RecordBus
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.streams import ACKS, DECISIONS, TICKS


@dataclass
class Town:
    """Kafka as the bus, NATS as the engines' event plane, a folder for the processes, and a connection to look with."""

    site: Site
    records: RecordBus

    async def applied(self, times: int) -> list[DecisionAck]:
        """The acks, once so many decisions have been carried out."""
        return await until_there(
            self.records, ACKS, lambda acks: sum(ack.status is AckStatus.APPLIED for ack in acks) >= times
        )


@pytest.fixture
async def town(tmp_path: Path, kafka: KafkaCluster) -> AsyncIterator[Town]:
    site, prefix = Site(tmp_path), fresh_prefix()
    with nats_server(tmp_path / "nats") as engines:
        sources = {"dynamo_fpm": {"namespace": "dynamo", "url": engines.url}}
        bus = {"url": kafka.url, "prefix": prefix, "partitions": 3}
        site.write(live_config(bus=bus, sources=sources))
        async with bus_at(kafka.url + "?partitions=3", prefix) as records:
            yield Town(site, records)
            site.close()
        assert site.tracebacks() == []


@pytest.mark.slow
async def test_decisions_are_made_acked_and_continued_after_a_kill(town: Town) -> None:
    simulator = town.site.start("simulator", "simulate", "-c", "planner.yaml", "--live")
    planner = town.site.start("planner", "run", "-c", "planner.yaml")
    await town.applied(times=1)
    planner.send_signal(signal.SIGKILL)
    planner.wait()
    second = town.site.start("second", "run", "-c", "planner.yaml")
    town.site.says("second", "planning in epoch 2")
    await town.applied(times=2)
    assert [town.site.stop(second), town.site.stop(simulator)] == [0, 0]
    decisions = await read_all(town.records, DECISIONS)
    assert [d.decision_id for d in decisions] == list(range(len(decisions)))
    rows = json.loads(town.site.run("decisions", "list", "-c", "planner.yaml", "--json").stdout)
    assert len(rows) == len(decisions)
    tail = town.site.run("streams", "tail", "ticks", "-c", "planner.yaml", "--from", "-1", "--no-follow")
    assert json.loads(tail.stdout.splitlines()[-1])["record"]["schema"] == "headrace.tick_report.v1"
    listed = town.site.run("streams", "list", "-c", "planner.yaml")
    assert listed.returncode == 0, listed.stderr


async def test_of_two_planners_the_second_stands_by_until_the_first_is_stopped(town: Town) -> None:
    first = town.site.start("first", "run", "-c", "planner.yaml")
    town.site.says("first", "planning in epoch 1")
    second = town.site.start("second", "run", "-c", "planner.yaml")
    town.site.says("second", "standing by")
    assert first.poll() is None
    assert town.site.stop(first) == 0
    town.site.says("second", "planning in epoch 2")
    ticks = len(await read_all(town.records, TICKS))
    await until_there(town.records, TICKS, lambda found: len(found) > ticks)
    assert town.site.stop(second) == 0
