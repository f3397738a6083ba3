"""Fits without workers and without libraries: there at once, and always the same."""

from collections.abc import Iterable

from headrace.models.forecast.fitting import FitJob, FitResult
from headrace.streams.runtime.fits import Fits

HALF = {"p": 1, "d": 0, "q": 0, "constant": False, "log_unit": None, "unit": 1.0}  # half of the last value, for ARIMA


class FitsAtOnce(Fits):
    """What is submitted is finished at the next question."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs: list[tuple[str, str, int]] = []  # series, kind, at
        self.done: dict[str, list[tuple[str, FitResult]]] = {}

    def submit(self, owner: str, series: str, jobs: Iterable[FitJob]) -> int:
        made = list(jobs)
        for job in made:
            self.jobs.append((series, job.kind, job.at))
            result = FitResult(job.kind, job.at, job.newest, {"order": HALF, "params": [0.5, 1.0]})
            self.done.setdefault(owner, []).append((series, result))
        return len(made)

    def finished(self, owner: str) -> list[tuple[str, FitResult]]:
        return self.done.pop(owner, [])

    def forget(self, owner: str) -> None:
        self.done.pop(owner, None)
