"""Which bus a command gets from its settings, and how its event loop ends."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nkeys
import pytest
from nats_identities import key_pair

from headrace.connectors.bus.memory import MemoryBus
from headrace.schemas.errors import BusError, ConfigError
from headrace.schemas.streams import STREAMS
from headrace.streams.cli.connect import (
    Client,
    make_sure,
    nats_options,
    open_bus,
    run_until_stopped,
    running_server,
    store_of,
)
from headrace.streams.settings import BusSettings, Settings, settings

NO_PROCESS = 2**22 + 1  # above what Linux gives


def on(**bus: Any) -> Settings:
    return settings({"bus": bus})


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def left_by(store: Path, pid: int, port: int) -> None:
    """The file in which an embedded server says where it listens."""
    ports = store / "ports"
    ports.mkdir(exist_ok=True)
    (ports / f"nats-server_{pid}.ports").write_text(json.dumps({"nats": [f"nats://127.0.0.1:{port}"]}))


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("embedded", "here"),
        ("embedded:there", "there"),
        ("embedded:", "here"),
        ("nats://h:4222", None),
        ("memory://", None),
    ],
)
def test_the_store_is_that_of_the_url_or_of_the_settings(url: str, store: str | None) -> None:
    assert store_of(BusSettings(url=url, store="here")) == (None if store is None else Path(store))


def test_a_running_server_is_found_by_what_it_left_in_its_store(tmp_path: Path, listener: socket.socket) -> None:
    left_by(tmp_path, os.getpid(), port_of(listener))
    assert running_server(tmp_path) == f"nats://127.0.0.1:{port_of(listener)}"


def test_a_store_without_a_server_has_none(tmp_path: Path) -> None:
    assert running_server(tmp_path) is None
    assert running_server(tmp_path / "nowhere") is None


def test_a_server_that_was_killed_is_not_taken_for_another_on_its_port(tmp_path: Path, listener: socket.socket) -> None:
    left_by(tmp_path, NO_PROCESS, port_of(listener))
    assert running_server(tmp_path) is None


def test_a_process_that_does_not_listen_is_no_server(tmp_path: Path, listener: socket.socket) -> None:
    left_by(tmp_path, os.getpid(), port_of(listener))
    listener.close()
    assert running_server(tmp_path) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"nats": []}', '{"nats": ["nats://127.0.0.1:x"]}', '{"nats": 1}']
)
def test_a_file_that_is_still_being_written_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "ports").mkdir()
    (tmp_path / "ports" / f"nats-server_{os.getpid()}.ports").write_text(text)
    (tmp_path / "ports" / "other.ports").write_text(text)
    assert running_server(tmp_path) is None


async def test_without_a_running_server_the_error_says_how_to_start_or_name_one(tmp_path: Path) -> None:
    with pytest.raises(BusError, match=r"no server runs on .* start `headrace run` .* --bus nats://HOST:PORT"):
        async with open_bus(on(store=str(tmp_path))):
            pass


async def test_a_second_server_on_a_store_is_refused_with_the_first_ones_address(
    tmp_path: Path, listener: socket.socket
) -> None:
    left_by(tmp_path, os.getpid(), port_of(listener))
    with pytest.raises(BusError, match=f"use it with --bus nats://127.0.0.1:{port_of(listener)}"):
        async with open_bus(on(store=str(tmp_path)), Client(serve=True)):
            pass


async def test_a_bus_that_is_none_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="localhost"):
        async with open_bus(on(url="localhost:4222")):
            pass


async def test_a_bus_in_memory_serves_one_process() -> None:
    async with open_bus(on(url="memory://cli"), Client("me", clock=lambda: 5.0)) as records:
        assert isinstance(records.bus, MemoryBus)
        assert (records.reader_name, records.clock()) == ("me", 5.0)


def test_the_settings_say_who_we_are(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("me.creds", "ca.pem", "cert.pem", "key.pem")}
    for path in files.values():
        path.touch()
    files["me.creds"].write_text(key_pair(nkeys.PREFIX_BYTE_USER)[2])
    bus = BusSettings(
        credentials=str(files["me.creds"]),
        tls_ca=str(files["ca.pem"]),
        tls_cert=str(files["cert.pem"]),
        tls_key=str(files["key.pem"]),
    )
    found = nats_options(bus, "tls://h1,h2:5000", Client("tail", patience_s=3.0))
    assert found.servers == ("tls://h1:4222", "tls://h2:5000")
    assert (found.name, found.patience_s, found.tls) == ("tail", 3.0, True)
    assert found.credentials == files["me.creds"]
    assert (found.ca, found.cert, found.cert_key) == (files["ca.pem"], files["cert.pem"], files["key.pem"])


def test_what_the_address_itself_says_is_kept() -> None:
    found = nats_options(BusSettings(), "nats://me:pw@h?patience_s=0.5&name=mine", Client("tail"))
    assert (found.user, found.password, found.patience_s, found.name) == ("me", "pw", 0.5, "mine")


def test_two_identities_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one of"):
        nats_options(BusSettings(token="t"), "nats://me:pw@h", Client())


async def test_streams_that_are_missing_are_made_and_others_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus()
    await bus.open()
    await bus.ensure([STREAMS["decisions"]])
    made: list[str] = []
    ensure = bus.ensure

    async def spy(streams: Any) -> None:
        made.extend(stream.name for stream in streams)
        await ensure(streams)

    monkeypatch.setattr(bus, "ensure", spy)
    await make_sure(bus, [STREAMS["decisions"], STREAMS["acks"]])
    assert made == ["acks"]
    assert (await bus.info(STREAMS["acks"])).messages == 0


async def test_a_bus_that_is_away_is_not_taken_for_a_missing_stream() -> None:
    bus = MemoryBus()
    await bus.open()
    bus.broker.available = False
    with pytest.raises(BusError, match="switched off"):
        await make_sure(bus, [STREAMS["decisions"]])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_stop_event_and_the_command_ends_itself(number: signal.Signals) -> None:
    async def main(stop: asyncio.Event) -> str:
        os.kill(os.getpid(), number)
        await stop.wait()
        return "tidied up"

    assert run_until_stopped(main) == "tidied up"


def test_a_second_interrupt_is_not_waited_for() -> None:
    async def main(stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        run_until_stopped(main)
