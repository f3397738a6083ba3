"""Fits that are too slow for a tick, as values: a job that can be sent anywhere, and the result that comes back.

    for job in forecaster.fit_jobs():       # nothing, unless something has changed
        forecaster.take_fit(job.run())      # run() may be in another process, and later

A result is data for JSON, so that it can be recorded and a replay can take it in at the same place.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.schemas.errors import RecordError
from headrace.schemas.reasons import DeadLetterReason

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class FitResult:
    """What a fit found: `values`, or why there are none."""

    kind: str  # which forecaster's
    at: int  # points of the series that had been seen
    newest: float  # the last of them, to tell one series from another
    values: dict[str, Any] | None
    failure: str = ""


class FitJob(Protocol):
    """One fit, with all the data that it needs. Can be pickled; `run` depends on nothing else."""

    @property
    def kind(self) -> str: ...

    @property
    def at(self) -> int: ...

    @property
    def newest(self) -> float: ...

    def run(self) -> FitResult:
        """Make the fit, seconds of work. What the library cannot fit is a result with a `failure`, not an error."""


def failed(job: FitJob, why: str) -> FitResult:
    """The result of a job that gave none: it is not due again until there is a new value."""
    return FitResult(job.kind, job.at, job.newest, None, why)


def found(kind: str, values: Mapping[str, Any], what: type[Found]) -> Found:
    """The values of a result as `what`. Raises RecordError (`invalid`) where they cannot be: they come off a bus."""
    try:
        return msgspec.convert(values, what)
    except msgspec.ValidationError as e:
        raise unusable(kind, str(e)) from e


def unusable(kind: str, why: str) -> RecordError:
    return RecordError(f"fit of {kind}: {why}: it is not used, and made again", reason=DeadLetterReason.INVALID)


def finite(values: tuple[float, ...]) -> bool:
    return all(map(math.isfinite, values))
