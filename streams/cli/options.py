"""Options that commands share: which configuration, which bus, which DGD."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click
import yaml

from headrace.schemas.errors import ConfigError
from headrace.streams.settings import Settings, load

Function = Callable[..., Any]

config_option = click.option(
    "-c",
    "--config",
    "config",
    metavar="FILE",
    envvar="HEADRACE_CONFIG",
    help="Configuration file, YAML or JSON.  [env: HEADRACE_CONFIG]",
)
set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the configuration; sections with dots: --set bus.prefix=test.",
)
bus_option = click.option(
    "--bus",
    metavar="URL",
    help="nats://HOST:PORT, tls://HOST:PORT, kafka://HOST:PORT, or `embedded`: a nats-server of our own on the "
    "directory bus.store, which `headrace run` starts and others find.  [env: HEADRACE_BUS_URL; default: embedded]",
)
dgd_option = click.option(
    "--dgd",
    metavar="NAMESPACE/NAME",
    envvar="HEADRACE_DGD",
    help="The deployment; listings show all without it.  [env: HEADRACE_DGD]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@dataclass(frozen=True, slots=True)
class Where:
    """What the shared options said. Flags win over the environment, and that over the file."""

    config: str | None
    sets: Mapping[str, Any]
    bus: str | None
    dgd: str | None

    def settings(self) -> Settings:
        """The valid settings. Raises ConfigError naming the key and the remedy."""
        overrides = dict(self.sets)
        if self.bus is not None:
            overrides["bus.url"] = self.bus
        if self.dgd is not None:
            overrides["dgd"] = self.dgd
        return load(self.config, overrides=overrides)


def where_options(function: Function) -> Function:
    """Gives a command `--config`, `--set`, `--bus` and `--dgd`; it gets them as one `where`."""

    @wraps(function)
    def call(config: str | None, sets: tuple[str, ...], bus: str | None, dgd: str | None, **others: Any) -> Any:
        return function(where=Where(config, pairs(sets), bus, dgd), **others)

    wrapped: Function = call
    for option in (set_option, config_option, dgd_option, bus_option):
        wrapped = option(wrapped)
    return wrapped


def pairs(sets: tuple[str, ...]) -> dict[str, Any]:
    """The keys and values of `--set`; a value is YAML. Raises ConfigError for anything but KEY=VALUE."""
    found: dict[str, Any] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text!r}: write KEY=VALUE, for example --set ttft_ms=300")
        try:
            found[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as e:
            raise ConfigError(f"--set {text!r}: the value is not YAML; quote it: --set '{key}=\"...\"'") from e
    return found
