"""Fits of forecasters in a few worker processes of their own, so that no tick ever waits for one.

Each owner (a DGD) calls, between ticks,

    for series, result in fits.finished(owner):     # what has come
        ...
    fits.submit(owner, series, jobs)

and neither ever waits. Nothing is submitted twice, nothing is queued behind a fit of the same series and kind: when
that one is done, the next call submits what is due then. A fit that ends in an error, kills its worker twice, or does
not end has a result too, without values, so that it is not made again before there is something new. The workers end
with their process, however it ends.
"""

import logging
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.models.forecast.fitting import FitJob, FitResult, failed
from headrace.streams.runtime.fit_worker import begin, end, run, workers

log = logging.getLogger(__name__)

Key = tuple[str, str, str]  # owner, series, kind
NOBODY = ""


@dataclass(slots=True)
class Under:
    """One fit that is under way, and the pool that makes it."""

    job: FitJob
    future: Future[FitResult]
    pool: ProcessPoolExecutor
    since: float | None = None  # monotonic seconds, when it was first seen to run


@dataclass(frozen=True, slots=True)
class Limits:
    """`waiting`: fits beyond those that run. A fit that runs for `longest_s` seconds is given up, with its worker: a
    solver may never come back. After `idle_s` without a fit the workers end, for the memory of their libraries."""

    waiting: int = 1024
    longest_s: float = 300.0
    idle_s: float = 900.0


class Fits:
    """At most `count` processes, started with the first fit."""

    def __init__(self, count: int | None = None, limits: Limits = Limits()) -> None:
        count = workers() if count is None else count
        if count < 1 or limits.waiting < 0:
            raise ValueError(f"fits need workers >= 1 (not {count}) and waiting >= 0 (not {limits.waiting})")
        self._count, self._limits = count, limits
        self._pool: ProcessPoolExecutor | None = None
        self._running: dict[Key, Under] = {}
        self._results: dict[str, list[tuple[str, FitResult]]] = {}  # by owner, until it asks
        self._killed: dict[Key, int] = {}  # at which its worker has died once
        self._nobodys = 0  # fits whose owner has gone while they were made
        self._busy_at = 0.0  # monotonic seconds, when there was last something to do
        self.refused = 0  # jobs that found no room; they are due again at the next call
        self.failed = 0  # jobs that ended without a fit

    def submit(self, owner: str, series: str, jobs: Iterable[FitJob]) -> int:
        """Start the fits of a series that are not under way. Returns how many. Never waits."""
        started = 0
        for job in jobs:
            key = (owner, series, job.kind)
            if key in self._running:
                continue
            if len(self._running) >= self._count + self._limits.waiting:
                self.refused += 1
            elif self._start(key, job):
                started += 1
        return started

    def _start(self, key: Key, job: FitJob) -> bool:
        self._busy_at = time.monotonic()
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # a fork would copy sockets and locks of the event loop
            self._pool = ProcessPoolExecutor(self._count, mp_context=context, initializer=begin)
        try:
            self._running[key] = Under(job, self._pool.submit(run, job), self._pool)
        except BrokenProcessPool:  # its fits under way say so too
            self._drop(self._pool)
            return False
        return True

    def finished(self, owner: str) -> list[tuple[str, FitResult]]:
        """The results of an owner that have come since its last call, with the names of their series. Never waits."""
        self._collect()
        self._results.pop(NOBODY, None)
        return self._results.pop(owner, [])

    def _collect(self) -> None:
        now = time.monotonic()
        for key, under in list(self._running.items()):
            if under.future.done():
                del self._running[key]
                self._take(key, under)
            elif under.since is None and under.future.running():
                under.since = now
        if self._running:
            self._busy_at = now
            self._give_up([k for k, u in self._running.items() if u.since and now - u.since > self._limits.longest_s])
        elif self._pool is not None and now - self._busy_at > self._limits.idle_s:
            self._drop(self._pool)

    def _take(self, key: Key, under: Under) -> None:
        error = under.future.exception()
        if error is None:
            self._killed.pop(key, None)
            self._results.setdefault(key[0], []).append((key[1], under.future.result()))
            return
        if not isinstance(error, BrokenProcessPool):
            self._fail(key, under.job, f"{type(error).__name__}: {error}"[:200])
            return
        self._drop(under.pool)
        if self._killed.get(key) == under.job.at:  # once may have been the fault of another that was under way
            self._fail(key, under.job, "the worker that made it has died, twice")
        else:
            log.warning("fit of %s to %s: its worker has died; it is made again", key[2], " ".join(key[:2]))
            self._killed[key] = under.job.at

    def _give_up(self, late: list[Key]) -> None:
        """End all workers, for one of them hangs. What the others were at is due again at the next call."""
        for key in late:
            self._fail(key, self._running[key].job, f"it has not ended within {self._limits.longest_s:g} s")
        if late:
            self._stop()

    def _fail(self, key: Key, job: FitJob, why: str) -> None:
        log.warning("fit of %s to %s failed: %s", key[2], " ".join(key[:2]), why)
        self._killed.pop(key, None)
        self.failed += 1
        self._results.setdefault(key[0], []).append((key[1], failed(job, why)))

    @property
    def under_way(self) -> int:
        return len(self._running)

    @property
    def processes(self) -> list[int]:
        """Ids of the workers, as far as they have been started."""
        return sorted(getattr(self._pool, "_processes", None) or ())

    def forget(self, owner: str) -> None:
        """Drop what is under way or done for an owner that is no more, or that begins anew."""
        for key in [k for k in self._running if k[0] == owner]:
            under = self._running.pop(key)
            if not under.future.cancel():  # it may hang, and must be seen to
                self._nobodys += 1
                self._running[NOBODY, str(self._nobodys), key[2]] = under
        self._killed = {k: at for k, at in self._killed.items() if k[0] != owner}
        self._results.pop(owner, None)

    def close(self) -> None:
        """End the workers without waiting for their fits. A later `submit` starts others."""
        self._results.clear()
        self._killed.clear()
        self._stop()

    def _stop(self) -> None:
        self._running.clear()
        if self._pool is not None:
            self._drop(self._pool)

    def _drop(self, pool: ProcessPoolExecutor) -> None:
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            end(process)  # shutdown alone would wait for a fit that hangs
        if pool is self._pool:
            self._pool = None


_shared: list[Fits] = []  # the one of this process, once for each that uses it


@contextmanager
def shared_fits() -> Iterator[Fits]:
    """The workers of this process, however many DGDs it plans; they end with the last that uses them."""
    fits = _shared[0] if _shared else Fits()
    _shared.append(fits)
    try:
        yield fits
    finally:
        _shared.pop()
        if not _shared:
            fits.close()
