"""The embedded nats-server: it keeps what it stored, keeps others away, and ends with its parent."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nats_support import is_alive, kill_server, nats_server

from headrace.connectors.bus.base import Outgoing
from headrace.connectors.bus.embedded import EmbeddedNats
from headrace.connectors.bus.factory import open_bus
from headrace.connectors.bus.nats import NatsBus
from headrace.schemas.errors import BusError
from headrace.schemas.streams import DECISIONS, MiB

A = "ml/llama"

# A process that starts a server as a program would, says which, and waits.
PARENT = """
import json, os, sys, threading, time
from headrace.connectors.bus.embedded import EmbeddedNats

server = EmbeddedNats(sys.argv[1])
how = sys.argv[2]
if how == "thread":
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
else:
    server.start()
forked = os.fork() if how == "fork" else 0
if how == "fork" and forked == 0:
    time.sleep(60)
print(json.dumps({"server": server.pid, "url": server.url, "forked": forked}), flush=True)
time.sleep(60)
"""


@contextmanager
def parent_of_a_server(store: Path, how: str = "main") -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, int]]]:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(store), how], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        yield parent, json.loads(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


def until(is_so: Callable[[], bool], seconds: float = 20) -> bool:
    give_up = time.monotonic() + seconds
    while not is_so() and time.monotonic() < give_up:
        time.sleep(0.01)
    return is_so()


@pytest.mark.parametrize("how", ["main", "thread"])
def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path, how: str) -> None:
    with parent_of_a_server(tmp_path, how) as (parent, started):
        assert is_alive(started["server"])
        parent.kill()
        parent.wait()
        assert until(lambda: not is_alive(started["server"]))


def test_the_server_ends_when_its_parent_is_killed_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    with parent_of_a_server(tmp_path, "fork") as (parent, started):
        try:
            parent.kill()
            parent.wait()
            assert until(lambda: not is_alive(started["server"]))
            assert is_alive(started["forked"])
        finally:
            os.kill(started["forked"], signal.SIGKILL)


def test_the_store_of_a_killed_parent_can_be_taken_over_at_once(tmp_path: Path) -> None:
    with parent_of_a_server(tmp_path) as (parent, started):
        parent.kill()
        with nats_server(tmp_path) as server:
            assert server.pid != started["server"]
            assert not is_alive(started["server"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_the_server_ends_when_its_guard_is_killed(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        stat = Path(f"/proc/{server.pid}/stat").read_text()
        pid, guard = server.pid, int(stat.rpartition(")")[2].split()[1])
        os.kill(guard, signal.SIGKILL)
        assert until(lambda: not is_alive(pid))
        assert until(lambda: not server.running)


def test_ctrl_c_reaches_the_parent_alone(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_store_in_use_is_refused_with_its_path_and_the_remedy(tmp_path: Path) -> None:
    with nats_server(tmp_path) as first:
        second = EmbeddedNats(tmp_path)
        with pytest.raises(BusError, match=rf"{tmp_path} is in use by another nats-server.*another directory"):
            second.start()
        assert not second.running
        assert first.running
        first.stop()
        second.start()
        second.stop()


def test_starting_and_stopping_twice_is_the_same_as_once(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        pid = server.pid
        server.start()
        assert server.pid == pid
        server.stop()
        server.stop()
        assert not server.running
        assert not is_alive(pid)
        assert "Server Exiting" in server.log_path.read_text().splitlines()[-1]  # in peace, not killed


def test_a_server_that_was_not_started_has_no_url(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    with pytest.raises(BusError, match="start it first"):
        _ = server.url
    with pytest.raises(BusError, match="start it first"):
        _ = server.pid


@pytest.mark.parametrize("ends", ["stopped", "killed"])
async def test_a_restart_keeps_the_url_and_every_acknowledged_message(tmp_path: Path, ends: str) -> None:
    with nats_server(tmp_path) as server:
        url = server.url
        bus = NatsBus(url)
        await bus.open()
        await bus.ensure([DECISIONS])
        await bus.publish_many([Outgoing("decisions", A, b"%d" % i) for i in range(200)])
        last = await bus.publish(Outgoing("decisions", A, b"last"))
        await bus.close()
        if ends == "stopped":
            server.stop()
        else:
            kill_server(server)
        server.start()
        assert server.url == url
        await bus.open()
        info = await bus.info(DECISIONS)
        assert (info.messages, info.last_position) == (201, last)
        await bus.close()


def test_servers_in_parallel_get_ports_of_their_own(tmp_path: Path) -> None:
    servers = [EmbeddedNats(tmp_path / f"{i}") for i in range(4)]
    try:
        for server in servers:
            server.start()
        assert len({server.port for server in servers}) == len(servers)
        assert all(server.running for server in servers)
    finally:
        for server in servers:
            server.stop()


def test_a_given_port_is_used(tmp_path: Path, unused_tcp_port: int) -> None:
    with nats_server(tmp_path, port=unused_tcp_port) as server:
        assert server.url == f"nats://127.0.0.1:{unused_tcp_port}"


def test_a_port_in_use_is_refused_with_the_servers_own_words(tmp_path: Path) -> None:
    with nats_server(tmp_path / "one") as server:
        second = EmbeddedNats(tmp_path / "two", port=server.port)
        with pytest.raises(BusError, match="address already in use"):
            second.start()
        assert not second.running


def test_a_bad_configuration_is_refused_with_the_servers_own_words(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path, config="no_such_option: 1")
    with pytest.raises(BusError, match="no_such_option"):
        server.start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a process's environment")
def test_it_listens_on_loopback_and_stores_durably(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        config = (tmp_path / "nats-server.conf").read_text()
        assert "host: 127.0.0.1\n" in config
        assert "sync_interval: always" in config
        assert "GOMEMLIMIT=1024MiB" in Path(f"/proc/{server.pid}/environ").read_text().split("\0")


async def test_it_starts_and_stops_as_a_context_manager(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server:
        pid = server.pid
        bus = NatsBus(server.url)
        await bus.open()
        assert bus.connected
        await bus.close()
    assert not is_alive(pid)


async def test_a_bus_url_may_bring_its_own_server(tmp_path: Path) -> None:
    for expected in (1, 2):
        async with open_bus(f"embedded:{tmp_path}") as bus:
            await bus.ensure([DECISIONS])
            assert await bus.publish(Outgoing("decisions", A, b"1")) == expected
    with nats_server(tmp_path):
        pass  # the store is free again


async def test_a_message_above_the_limit_is_refused_by_us_and_the_connection_stays(tmp_path: Path) -> None:
    async with open_bus(f"embedded:{tmp_path}") as bus:
        await bus.ensure([DECISIONS])
        await bus.publish(Outgoing("decisions", A, b"x" * (8 * MiB - 1000)))
        with pytest.raises(BusError, match="limit of 8388608 bytes"):
            await bus.publish(Outgoing("decisions", A, b"x" * 8 * MiB))
        assert bus.connected


async def test_a_full_disk_budget_is_named_with_the_remedy(tmp_path: Path) -> None:
    with nats_server(tmp_path, store_bytes=32 * MiB) as server:
        bus = NatsBus(server.url)
        await bus.open()
        with pytest.raises(BusError, match=r"HEADRACE_DECISIONS needs 256 MiB of file storage.*raise max_file_store"):
            await bus.ensure([DECISIONS])
        await bus.close()


async def test_the_loop_is_not_blocked_while_the_server_starts(tmp_path: Path) -> None:
    turns = 0
    starting = asyncio.create_task(EmbeddedNats(tmp_path).__aenter__())
    while not starting.done():
        turns += 1
        await asyncio.sleep(0)
    (await starting).stop()
    assert turns > 10
