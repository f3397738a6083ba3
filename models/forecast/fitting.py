"""Fits that are too slow for a tick, as values: a job that can be sent anywhere, and the result that comes back.

    for job in forecaster.fit_jobs():       # nothing, unless something has changed
        forecaster.take_fit(job.run())      # run() may be in another process, and later

A result is data for JSON, so that it can be recorded and a replay can take it in at the same place.
"""

from dataclasses import dataclass
from typing import Any, Protocol


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

    def run(self) -> FitResult:
        """Make the fit, seconds of work. What the library cannot fit is a result with a `failure`, not an error."""
