"""Fits of forecasters in a few worker processes of their own, so that no tick ever waits for one.

The owner of a planner calls, between ticks,

    for series, result in fits.finished():      # take in what has come; each says by itself whether it is stale
        forecasters[series].take_fit(result)
    fits.submit("default/main rate", forecaster.fit_jobs())

Nothing is submitted twice, nothing is queued behind a fit of the same series and kind: when that one is done, the next
call submits what is due then. A worker that dies takes its fits with it; they are due again at the next call.
"""

import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from headrace.models.forecast.fitting import FitJob, FitResult

log = logging.getLogger(__name__)

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class Under:
    """One fit that is under way, and the pool that makes it."""

    future: Future[FitResult]
    pool: ProcessPoolExecutor


class Fits:
    """`workers` processes, started with the first fit; at most `waiting` fits beyond those that run.

    When no fit ends for `longest_s` seconds, the workers are replaced: a solver may never come back.
    """

    def __init__(self, workers: int = 1, waiting: int = 64, longest_s: float = 120.0) -> None:
        if workers < 1 or waiting < 0:
            raise ValueError(f"fits need workers >= 1 (not {workers}) and waiting >= 0 (not {waiting})")
        self._workers = workers
        self._most = workers + waiting
        self._longest_s = longest_s
        self._pool: ProcessPoolExecutor | None = None
        self._running: dict[tuple[str, str], Under] = {}  # by series and kind
        self._progress_at = 0.0  # monotonic seconds: when a fit ended last, or the first began
        self.refused = 0  # jobs that found no room; they are due again at the next call
        self.failed = 0  # jobs that ended in an error, their worker's death included

    def submit(self, series: str, jobs: Iterable[FitJob]) -> int:
        """Start the fits of a series that are not under way. Returns how many. Never waits."""
        started = 0
        for job in jobs:
            key = (series, job.kind)
            if key in self._running:
                continue
            if len(self._running) >= self._most:
                self.refused += 1
            elif self._start(key, job):
                started += 1
        return started

    def _start(self, key: tuple[str, str], job: FitJob) -> bool:
        if not self._running:
            self._progress_at = time.monotonic()
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork would copy sockets and locks of the event loop
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=_begin)
        try:
            self._running[key] = Under(self._pool.submit(_run, job), self._pool)
        except BrokenProcessPool:
            self.failed += 1
            self._drop(self._pool)
            return False
        return True

    def finished(self) -> list[tuple[str, FitResult]]:
        """Results that have come since the last call, in the order of their submission. Never waits."""
        results = []
        for key, under in list(self._running.items()):
            if not under.future.done():
                continue
            del self._running[key]
            self._progress_at = time.monotonic()
            error = under.future.exception()
            if error is None:
                results.append((key[0], under.future.result()))
                continue
            self.failed += 1
            log.warning("fit of %s for %s failed: %r", key[1], key[0], error)
            if isinstance(error, BrokenProcessPool):
                self._drop(under.pool)
        if self._running and time.monotonic() - self._progress_at > self._longest_s:
            log.warning("no fit has ended for %g s: %d are given up", self._longest_s, len(self._running))
            self.failed += len(self._running)
            self.close()
        return results

    @property
    def under_way(self) -> int:
        return len(self._running)

    def forget(self, series: str) -> None:
        """Drop what is under way for a series that is no more, or that begins anew."""
        for key in [k for k in self._running if k[0] == series]:
            self._running.pop(key).future.cancel()

    def close(self) -> None:
        """End the workers without waiting for their fits. A later `submit` starts others."""
        self._running.clear()
        if self._pool is not None:
            self._drop(self._pool)

    def _drop(self, pool: ProcessPoolExecutor) -> None:
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()  # shutdown alone would wait for a fit that hangs
        if pool is self._pool:
            self._pool = None


def quiet() -> None:
    """Silence libraries that report every fit, and what they miss. Call before they are imported."""
    for name in ("cmdstanpy", "prophet.plot"):
        logger: Any = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        logger.propagate = False
    warnings.filterwarnings("ignore", module=r"(prophet|pandas|statsmodels|pmdarima|sklearn)(\.|$)")


def _begin() -> None:
    """In a worker, before anything else: one thread, least priority, no chatter."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    if hasattr(os, "nice"):
        os.nice(LOWEST_PRIORITY)
    quiet()


def _run(job: FitJob) -> FitResult:
    return job.run()
