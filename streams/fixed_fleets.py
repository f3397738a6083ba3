"""Fixed fleets on a trace, each in a process of its own, as many at once as there are cores."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.sweep import FleetResult, static_sweep
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.base import Role

LOOK_S = 0.2


def fixed_fleets(
    trace: Trace, config: SimulatorConfig, fleets: Sequence[dict[Role, int]], progress: Callable[[float], None]
) -> list[FleetResult]:
    """What each fleet achieves, in their order.

    `progress` gets the share that is done, several times a second. What it raises ends all processes at once, as does
    the end of this process, however it ends.
    """
    if not fleets:
        return []
    spawn = multiprocessing.get_context("spawn")  # a fork would inherit signal handlers and the pipes of children
    with ProcessPoolExecutor(min(len(fleets), os.cpu_count() or 1), spawn, _end_with_parent) as pool:
        futures: list[Future[list[FleetResult]]] = [pool.submit(static_sweep, trace, config, [f]) for f in fleets]
        try:
            left = set(futures)
            while left:
                _, left = wait(left, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                progress(1.0 - len(left) / len(fleets))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
        return [future.result()[0] for future in futures]


def _end_with_parent() -> None:
    """In a worker: Ctrl-C is for the parent, and nobody waits for what a killed parent asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
