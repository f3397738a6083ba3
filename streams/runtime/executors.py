"""The executor that `headrace run` carries inside itself, when the configuration asks for one."""

from typing import Any

from headrace.connectors.bus.records import RecordBus
from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.command import CommandExecutor, CommandOptions
from headrace.connectors.executors.dry_run import DryRunExecutor
from headrace.schemas.errors import ConfigError
from headrace.streams.settings import ExecutorSettings


def executor_of(s: ExecutorSettings, records: RecordBus, dgd: str) -> Any:
    """A command per decision, or a dry run. Raises ConfigError when neither or both are asked for."""
    if (s.exec is None) == (not s.dry_run):
        raise ConfigError("executor: give either exec (a command) or dry_run: true")
    client = DecisionClient(records, dgd, "headrace.run")
    if s.exec is None:
        return DryRunExecutor(client)
    return CommandExecutor(client, CommandOptions.parse(s.exec, timeout_s=s.timeout_seconds))
