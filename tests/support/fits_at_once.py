"""Fits without workers: made at once, in this process, or never."""

from collections.abc import Iterable

from headrace.models.forecast.fitting import FitJob, FitResult
from headrace.streams.runtime.fits import Fits


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
            self.done.setdefault(owner, []).append((series, job.run()))
        return len(made)

    def finished(self, owner: str) -> list[tuple[str, FitResult]]:
        return self.done.pop(owner, [])

    def forget(self, owner: str) -> None:
        self.done.pop(owner, None)
