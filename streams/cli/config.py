"""`headrace config check`: is a configuration valid, what would run with it, and is there anything odd about it."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from headrace.schemas.errors import ConfigError
from headrace.streams.cli import output
from headrace.streams.cli.connect import Client, is_kafka, is_nats, kafka_options, nats_options, store_of
from headrace.streams.cli.options import pairs, set_option
from headrace.streams.settings import Settings, load

MASK = "********"
_SECRETS = ("password", "token")


@click.group("config")
def command() -> None:
    """Check a configuration file.

    \b
    headrace config check planner.yaml
    """


@command.command("check")
@click.argument("file")
@set_option
@click.option(
    "--print",
    "print_",
    is_flag=True,
    help="Print the effective configuration, secrets masked; all else goes to stderr.",
)
def check(file: str, sets: tuple[str, ...], print_: bool) -> None:
    """Check FILE as `headrace run` would read it, and say what would run.

    Environment variables and --set win over the file, as they do there. Nothing is contacted. Odd but legal choices are
    warnings. Exit code 0: valid; 2: not, with the key, the rule and the remedy on stderr.

    \b
    headrace config check planner.yaml
    headrace config check planner.yaml --set ttft_ms=300 --print > effective.yaml
    """
    from headrace.streams.cli.config_summary import summary
    from headrace.streams.cli.config_warnings import warnings

    overrides = pairs(sets)
    found = load(file, overrides=overrides)
    check_parts(found)
    _check_warmup(found)
    if print_:
        output.write(yaml.safe_dump(effective(found), sort_keys=False, allow_unicode=True).rstrip("\n"))
    click.echo(f"{file}: valid", err=print_)
    for name, text in summary(found):
        click.echo(f"  {name:<11}{output.printable(text)}", err=print_)
    for text in warnings(found, os.environ):
        click.echo(click.style("warning: ", fg="yellow") + output.printable(text), err=print_)


def check_parts(settings: Settings) -> None:
    """Build every part that the settings name, without starting it. Raises ConfigError as the part does."""
    from headrace.streams.fleet import Fleet
    from headrace.streams.planner import Planner
    from headrace.streams.simulation import cluster_config, simulation_settings

    edges = settings.edges
    fleet = Fleet.of(settings)
    for dgd in fleet.names:
        Planner(fleet.settings_of(dgd).planner, dgd)
    Planner(settings.planner, edges.dgd)  # a forecaster may be unknown, or its extra missing
    _check_bus(settings)
    _check_sources(settings)
    _check_executor(settings)
    if edges.simulator is not None:
        cluster_config(simulation_settings(edges.simulator), settings)


def _check_warmup(settings: Settings) -> None:
    """A planner that runs goes on without a trace that it cannot read, for it may have learned from it before."""
    from headrace.streams.runtime.warmup import recorded_load

    source = settings.planner.load_predictor_warmup_trace
    if source is not None:
        recorded_load(source, settings.planner.throughput_adjustment_interval_seconds)


def _check_bus(settings: Settings) -> None:
    from headrace.connectors.bus.factory import open_bus
    from headrace.connectors.bus.nats.subjects import Subjects

    bus = settings.edges.bus
    Subjects(bus.prefix)
    if store_of(bus) is not None:
        return
    if is_nats(bus.url):
        nats_options(bus, bus.url, Client()).ssl_context()
        return
    if is_kafka(bus.url):
        kafka_options(bus, bus.url, Client()).ssl_context()
        return

    async def other() -> None:  # a bus in memory, or an error that says what a bus is
        async with open_bus(bus.url, bus.prefix):
            pass

    asyncio.run(other())


def _check_sources(settings: Settings) -> None:
    from headrace.connectors.bus.nats import NatsOptions
    from headrace.connectors.sources.dynamo_fpm import DynamoFpmOptions
    from headrace.connectors.sources.frontend_metrics import FrontendOptions
    from headrace.connectors.sources.frontend_page import Selector

    edges = settings.edges
    fpm, frontend, replay = edges.sources.dynamo_fpm, edges.sources.frontend, edges.sources.replay
    if fpm is not None:
        server = fpm.url or "nats://127.0.0.1"
        NatsOptions.from_url(server)
        DynamoFpmOptions((server,), (), namespace=settings.dynamo_namespace, flush_s=fpm.flush_seconds)
    if fpm is not None and fpm.url is None and edges.bus.url.startswith(("memory", "kafka")):
        raise ConfigError(
            "sources.dynamo_fpm.url is needed: engines publish on NATS, and the bus has no server of that kind"
        )
    if frontend is not None:
        timeout_s = min(frontend.timeout_seconds, 0.9 * frontend.interval_seconds)
        selector = Selector(model=frontend.model)
        FrontendOptions(edges.dgd, tuple(frontend.urls), "frontend", selector, frontend.interval_seconds, timeout_s)
        if not frontend.urls:
            raise ConfigError("sources.frontend.urls is empty: name each frontend's /metrics page, or remove frontend")
    for key, path in (("fpm", replay.fpm), ("metrics", replay.metrics)) if replay else ():
        if path is not None and not Path(path).exists():
            raise ConfigError(f"sources.replay.{key}: {path} does not exist")


def _check_executor(settings: Settings) -> None:
    from headrace.connectors.executors.command import CommandOptions

    executor = settings.edges.executor
    if executor is None:
        return
    if (executor.exec is None) == (not executor.dry_run):
        raise ConfigError("executor: give either exec (a command) or dry_run: true")
    if executor.exec is not None:
        CommandOptions.parse(executor.exec, executor.timeout_seconds)


def effective(settings: Settings) -> dict[str, Any]:
    """The whole configuration in force, defaults included, as a file could say it; secrets are masked."""
    plain: dict[str, Any] = msgspec.to_builtins(settings.planner) | msgspec.to_builtins(settings.edges)
    masked: dict[str, Any] = _masked(plain)
    return masked


def _masked(node: Any, name: str = "") -> Any:
    if isinstance(node, Mapping):
        return {key: _masked(value, key) for key, value in node.items()}
    if isinstance(node, list):
        return [_masked(value, name) for value in node]
    if isinstance(node, str):
        return MASK if name in _SECRETS else without_userinfo(node)
    return node


def without_userinfo(text: str) -> str:
    """An address without the user, password or token in it; any other text as it is."""
    scheme, separator, rest = text.partition("://")
    host, slash, path = rest.partition("/")
    if not separator or "@" not in host:
        return text
    return f"{scheme}://{MASK}@{host.rpartition('@')[2]}{slash}{path}"
