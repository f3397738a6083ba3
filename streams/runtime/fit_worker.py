"""What a worker process of the fits does: one thread, low priority, no chatter, and an end with its parent."""

import logging
import multiprocessing
import os
import signal
import threading
import warnings
from multiprocessing.process import BaseProcess
from typing import Any

from headrace.models.forecast.fitting import FitJob, FitResult

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LOW_PRIORITY = 10  # behind every tick; the lowest would starve on a machine that is always busy
MOST_WORKERS = 4


def workers() -> int:
    """How many there may be on this machine: a quarter of its cores."""
    return max(1, min(MOST_WORKERS, (os.cpu_count() or 1) // 4))


def quiet() -> None:
    """Silence libraries that report every fit, and what they miss. Call before they are imported."""
    for name in ("cmdstanpy", "prophet.plot"):
        logger: Any = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        logger.propagate = False
    warnings.filterwarnings("ignore", module=r"(prophet|pandas|statsmodels|pmdarima|sklearn)(\.|$)")


def begin() -> None:
    """In a worker, before anything else."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    os.setpgrp()  # with the solvers that it starts; and a Ctrl-C is for the planner alone
    os.nice(LOW_PRIORITY)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    quiet()


def _end_with_parent() -> None:
    """A parent that was killed cannot end its workers, and they would wait for it for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


def end(process: BaseProcess) -> None:
    """End a worker at once, and a solver that it has started."""
    try:
        if process.pid is not None:
            os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()  # it has no group yet, or has ended


def run(job: FitJob) -> FitResult:
    return job.run()
