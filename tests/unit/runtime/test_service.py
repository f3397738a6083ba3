"""What `headrace run` is made of, from its settings."""

import asyncio
from pathlib import Path

import pytest
from bus_support import memory_records

from headrace.connectors.bus.nats import NatsBus, NatsOptions
from headrace.connectors.executors.command import CommandExecutor
from headrace.connectors.executors.dry_run import DryRunExecutor
from headrace.schemas.errors import ConfigError
from headrace.streams.runtime.clock import VirtualClock
from headrace.streams.runtime.executors import executor_of
from headrace.streams.runtime.service import client_options, serve
from headrace.streams.settings import ExecutorSettings, settings


async def test_the_executor_is_a_command_or_a_dry_run_and_nothing_else() -> None:
    records = await memory_records(lambda: 0.0)
    assert isinstance(executor_of(ExecutorSettings(exec="./scale.sh"), records, "a/b"), CommandExecutor)
    assert isinstance(executor_of(ExecutorSettings(dry_run=True), records, "a/b"), DryRunExecutor)
    for wrong in (ExecutorSettings(), ExecutorSettings(exec="./scale.sh", dry_run=True)):
        with pytest.raises(ConfigError, match="either exec"):
            executor_of(wrong, records, "a/b")


async def test_dynamos_events_need_an_address_where_the_bus_has_none() -> None:
    records = await memory_records(lambda: 0.0)
    with pytest.raises(ConfigError, match=r"sources\.dynamo_fpm\.url is needed"):
        await serve(settings({"sources": {"dynamo_fpm": {}}}), records, asyncio.Event(), clock=VirtualClock())


def test_another_connection_has_the_identity_of_the_bus(tmp_path: Path) -> None:
    bus = NatsBus(NatsOptions(user="me", password="secret"))
    assert client_options(bus) == {"user": "me", "password": "secret"}
    assert client_options(NatsBus(NatsOptions(token="t"))) == {"token": "t"}
    assert client_options(NatsBus(NatsOptions())) == {}
