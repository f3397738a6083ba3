"""Executor that runs a command for each decision: `headrace decisions follow --exec './scale.sh'`.

The command gets the decision as JSON on stdin and as HEADRACE_ variables. Exit 0 means that the orchestrator shows the
targets; exit 75 (EX_TEMPFAIL) that they are refused; anything else that it failed, with the last line of stderr as why.
"""

import asyncio
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.follow import follow
from headrace.connectors.executors.outcome import Outcome
from headrace.connectors.executors.process import Finished, run
from headrace.schemas.ack import AckStatus
from headrace.schemas.base import Count, Role
from headrace.schemas.codec import encode
from headrace.schemas.decision import Decision
from headrace.schemas.errors import ConfigError

REJECTED = os.EX_TEMPFAIL  # 75
_LONGEST_MESSAGE = 1000

_counts = msgspec.json.Decoder(dict[Role, Count]).decode


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """`argv` is run without a shell. After `timeout_s` seconds its group is ended, and the decision has failed."""

    argv: tuple[str, ...]
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not self.argv or self.timeout_s <= 0:
            raise ConfigError(f"a command and a timeout above 0 are needed, not {self.argv!r} and {self.timeout_s:g} s")

    @classmethod
    def parse(cls, command: str, timeout_s: float = 600.0) -> "CommandOptions":
        """Split a command line as a shell would. Raises ConfigError for an open quote."""
        try:
            return cls(tuple(shlex.split(command)), timeout_s)
        except ValueError as e:
            raise ConfigError(f"--exec {command!r}: {e}; quote it as for a shell") from e


class CommandExecutor:
    """One command at a time; while it runs, newer decisions wait, and the newest of them is next."""

    def __init__(self, client: DecisionClient, options: CommandOptions) -> None:
        self._client = client
        self._options = options

    async def run(self, stop: asyncio.Event) -> None:
        """Carry out decisions until `stop`; a command that runs then is ended, and its decision left unsettled."""

        async def act(decision: Decision) -> Outcome | None:
            return await self.apply(decision, stop)

        await follow(self._client, act, stop)

    async def apply(self, decision: Decision, stop: asyncio.Event) -> Outcome | None:
        """Run the command for a decision. None when `stop` came first."""
        try:
            finished = await run(
                self._options.argv,
                stdin=encode(decision) + b"\n",
                env=environment(decision),
                timeout_s=self._options.timeout_s,
                stop=stop,
            )
        except OSError as e:
            return Outcome(AckStatus.FAILED, f"cannot start {self._options.argv[0]!r}: {e.strerror or e}")
        if finished.timed_out:
            return Outcome(AckStatus.FAILED, f"ended after {self._options.timeout_s:g} s. {_why(finished)}".strip())
        return None if finished.code is None else outcome(decision.targets, finished)


def outcome(targets: Mapping[Role, int], finished: Finished) -> Outcome:
    """What an exit means. The last line of stdout may be a JSON object of role -> replicas: the counts then seen."""
    counts = _counts_on(finished.stdout)
    match finished.code:
        case 0:
            return Outcome(AckStatus.APPLIED, counts=dict(targets) if counts is None else counts)
        case code if code == REJECTED:
            return Outcome(AckStatus.REJECTED, _why(finished) or "refused by the command", counts or {})
        case code:
            return Outcome(AckStatus.FAILED, _why(finished) or f"exit code {code}", counts or {})


def environment(decision: Decision) -> dict[str, str]:
    """The HEADRACE_ variables of a decision. Roles are in capitals, other characters than A-Z and 0-9 become `_`."""
    variables = {
        "HEADRACE_DGD": decision.dgd,
        "HEADRACE_EPOCH": str(decision.epoch),
        "HEADRACE_DECISION_ID": str(decision.decision_id),
        "HEADRACE_ISSUED_AT": f"{decision.issued_at:.3f}",
        "HEADRACE_EXPIRES_AT": f"{decision.expires_at:.3f}",
    }
    for kind, values in (
        ("TARGET", decision.targets),
        ("PREVIOUS", decision.previous),
        ("REASON", decision.reasons),
    ):
        for role, value in values.items():
            variables[f"HEADRACE_{kind}_{_variable(role)}"] = str(value).replace("\0", "")
    return variables


def _variable(role: Role) -> str:
    return re.sub("[^A-Z0-9]", "_", role.upper())


def _counts_on(stdout: str) -> dict[Role, int] | None:
    lines: Sequence[str] = stdout.rstrip().splitlines()
    if not lines:
        return None
    try:
        return _counts(lines[-1])
    except (msgspec.DecodeError, RecursionError):
        return None


def _why(finished: Finished) -> str:
    return finished.last_error_line[:_LONGEST_MESSAGE]
