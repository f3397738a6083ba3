"""Executor for an orchestrator that Python code can talk to: set the targets, watch the counts until they are there."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.connectors.executors.client import DecisionClient
from headrace.connectors.executors.follow import follow
from headrace.connectors.executors.outcome import Outcome
from headrace.schemas.ack import AckStatus
from headrace.schemas.base import Role
from headrace.schemas.decision import Decision
from headrace.schemas.errors import ConfigError

Counts = Mapping[Role, int]


class Scaler(Protocol):
    """What an orchestrator must be able to do."""

    async def set_targets(self, targets: Counts) -> None:
        """Ask for these replicas per role. Raises Refused when the orchestrator refuses them on purpose."""

    async def counts(self) -> Counts:
        """The replicas per role that serve now: draining ones count until they are gone, starting ones do not yet."""


def reached(targets: Counts, counts: Counts) -> bool:
    """Does the orchestrator show the targets? A role that it does not show is not reached; others do not matter."""
    return all(counts.get(role) == wanted for role, wanted in targets.items())


@dataclass(frozen=True, slots=True)
class VirtualOptions:
    """Times in seconds."""

    timeout_s: float = 600.0  # from setting the targets until they must be reached
    poll_s: float = 0.5

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.poll_s <= 0:
            raise ConfigError(f"timeout_s ({self.timeout_s:g}) and poll_s ({self.poll_s:g}) must be above 0")


class VirtualExecutor:
    """Acks `accepted`, then `applied` when the counts are shown, else `rejected` or `failed`."""

    def __init__(
        self,
        client: DecisionClient,
        scaler: Scaler,
        options: VirtualOptions = VirtualOptions(),
        *,
        reached: Callable[[Counts, Counts], bool] = reached,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._scaler = scaler
        self._options = options
        self._reached = reached
        self._monotonic = monotonic

    async def run(self, stop: asyncio.Event) -> None:
        """Carry out decisions until `stop`; the one in hand is left unsettled then."""

        async def act(decision: Decision) -> Outcome | None:
            return await self.apply(decision, stop)

        await follow(self._client, act, stop)

    async def apply(self, decision: Decision, stop: asyncio.Event) -> Outcome | None:
        """Set the targets and wait for them. None when `stop` came first."""
        await self._scaler.set_targets(decision.targets)
        give_up_at = self._monotonic() + self._options.timeout_s
        while not stop.is_set():
            counts = dict(await self._scaler.counts())
            if self._reached(decision.targets, counts):
                return Outcome(AckStatus.APPLIED, counts=counts)
            newer = self._client.newest
            if newer is not None and newer != decision:
                why = f"superseded by decision {newer.decision_id} of epoch {newer.epoch} while it was carried out"
                return Outcome(AckStatus.REJECTED, why, counts)
            if self._monotonic() >= give_up_at:
                return Outcome(AckStatus.FAILED, self._late(decision, counts), counts)
            await asyncio.sleep(self._options.poll_s)
        return None

    def _late(self, decision: Decision, counts: Counts) -> str:
        missing = {role: counts.get(role) for role, n in decision.targets.items() if counts.get(role) != n}
        shown = ", ".join(f"{role} {count}, not {decision.targets[role]}" for role, count in missing.items())
        return f"after {self._options.timeout_s:g} s the orchestrator shows {shown or 'other counts'}"
