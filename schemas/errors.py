"""The error tree. A message names the input, the rule that it broke, and the remedy."""


class HeadraceError(Exception):
    """Everything that Headrace raises on purpose."""


class ConfigError(HeadraceError):
    """A configuration that cannot be right; the process does not start with it."""


class RecordError(HeadraceError):
    """Bytes or a record that break a schema; the reader puts them to the dead letters and goes on."""

    def __init__(self, message: str, *, reason: str = "invalid") -> None:
        super().__init__(message)
        self.reason = str(reason)  # a DeadLetterReason, for filters


class BusError(HeadraceError):
    """The bus is unreachable, or refused an operation."""


class Fenced(BusError):
    """Another writer has written this key since we last looked: stop writing, we no longer own it."""


class StateError(HeadraceError):
    """A planner snapshot that cannot be restored."""
