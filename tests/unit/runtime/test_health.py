"""Alive means progress, ready means taking part; both are told even when the event loop hangs."""

import asyncio
import json
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest
from bus_support import eventually, memory_records
from prometheus_client import CollectorRegistry

from headrace.schemas.streams import STREAMS
from headrace.streams.runtime.clock import ScaledClock
from headrace.streams.runtime.health import OVERDUE_S, STUCK_S, Health
from headrace.streams.runtime.service import Service
from headrace.streams.runtime.web import serve_pages
from headrace.streams.settings import settings


class Hands:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


async def service_of(**raw: Any) -> Service:
    records = await memory_records(lambda: 0.0)
    await records.bus.ensure(STREAMS.values())
    return Service(settings({"load_adjustment_interval_seconds": 5, **raw}), records, ScaledClock())


def body(answer: tuple[int, str, bytes]) -> Any:
    return json.loads(answer[2])


async def test_a_service_becomes_ready_when_it_plans_what_it_owns_and_is_alive_all_the_while() -> None:
    service = await service_of(dgds=["a/b", "c/d"])
    health = Health(service)
    assert health.ready()[0] == 503
    assert health.alive()[0] == 200
    stop = asyncio.Event()
    running = [asyncio.create_task(service.run(stop)), asyncio.create_task(health.run(stop))]
    await eventually(lambda: len(service.host.units) == 2 and health.ready()[0] == 200)
    found = body(health.ready())
    assert (found["dgds"], found["recovering"], found["failing"], found["lease_held"]) == (2, [], {}, True)
    assert len(found["partitions"]) == 2
    stop.set()
    await asyncio.gather(*running)


async def test_a_loop_that_hangs_is_not_alive() -> None:
    now = Hands()
    health = Health(await service_of(), now)
    health.look()
    now.at += STUCK_S + 1
    assert health.alive()[0] == 503
    assert "event loop" in body(health.alive())["problems"][0]
    assert health.ready()[0] == 503
    health.look()
    assert health.alive()[0] == 200


async def test_a_tick_that_does_not_come_ends_liveness_but_not_while_the_bus_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, service = Hands(), await service_of()
    health = Health(service, now)
    monkeypatch.setattr(service, "late_ticks", lambda: [("a/b", 5.0)])
    for away in (False, True, False):
        service._records.bus.broker.available = not away  # type: ignore[attr-defined]
        health.look()
        now.at += OVERDUE_S + 1
        health.look()
        assert health.alive()[0] == (200 if away else 503)
        if not away:
            assert "a/b" in body(health.alive())["problems"][0]


async def test_the_pages_are_served_beside_the_metrics() -> None:
    health = Health(await service_of())
    registry = CollectorRegistry()
    registry.register(health)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    serve_pages(registry, {"/livez": health.alive, "/readyz": health.ready}, port, "127.0.0.1")

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    assert (await asyncio.to_thread(get, "/livez"))[0] == 200
    assert (await asyncio.to_thread(get, "/readyz"))[0] == 503
    status, page = await asyncio.to_thread(get, "/metrics")
    assert status == 200
    assert "headrace_planner_shard_partitions 0.0" in page
    assert 'headrace_planner_shard_moves_total{direction="in"} 0.0' in page
