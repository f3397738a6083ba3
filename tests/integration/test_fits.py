"""Fits in worker processes: none waits, none is lost for good, none is made twice."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fit_jobs import Job

from headrace.models.forecast.fitting import FitResult
from headrace.models.forecast.registry import make_forecaster
from headrace.streams.runtime.fits import Fits, Limits, shared_fits

OWNER, OTHER = "ml/llama", "ml/qwen"


@pytest.fixture
def fits() -> Iterator[Fits]:
    made = Fits(1, Limits(waiting=2))
    yield made
    made.close()


def until(fits: Fits, count: int, seconds: float = 60.0) -> list[tuple[str, FitResult]]:
    """Waits for so many results, or until nothing is under way any more."""
    found: list[tuple[str, FitResult]] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and fits.under_way and time.monotonic() < deadline:
        time.sleep(0.02)
        found += fits.finished(OWNER)
    return found


def test_a_fit_is_made_in_another_process_and_comes_back_with_the_name_of_its_series(fits: Fits) -> None:
    assert fits.submit(OWNER, "rate", [Job(5)]) == 1
    ((series, result),) = until(fits, 1)
    assert (series, result.at) == ("rate", 5)
    assert result.values is not None
    assert result.values["pid"] != os.getpid()


def test_a_fit_that_is_under_way_is_not_made_twice(fits: Fits) -> None:
    assert fits.submit(OWNER, "a", [Job(5, seconds=0.2)]) == 1
    assert fits.submit(OWNER, "a", [Job(6)]) == 0
    assert fits.submit(OWNER, "a", [Job(6, kind="prophet")]) == 1
    assert {(s, r.kind, r.at) for s, r in until(fits, 2)} == {("a", "arima", 5), ("a", "prophet", 6)}
    assert fits.submit(OWNER, "a", [Job(6)]) == 1


def test_what_finds_no_room_is_counted_and_not_kept(fits: Fits) -> None:
    started = [fits.submit(OWNER, name, [Job(1, seconds=0.1)]) for name in "abcde"]
    assert started == [1, 1, 1, 0, 0]
    assert fits.refused == 2


def failures(found: list[tuple[str, FitResult]]) -> dict[str, str]:
    return {series: result.failure for series, result in found if result.values is None}


def test_an_error_costs_its_own_fit_alone_and_is_its_result(fits: Fits) -> None:
    fits.submit(OWNER, "a", [Job(1, error="no convergence")])
    fits.submit(OWNER, "b", [Job(2)])
    found = until(fits, 2)
    assert [series for series, _ in found] == ["a", "b"]
    assert failures(found) == {"a": "RuntimeError: no convergence"}
    assert fits.failed == 1


def test_after_a_worker_has_died_fits_go_on_with_another(fits: Fits) -> None:
    fits.submit(OWNER, "a", [Job(1, dies=True)])
    assert until(fits, 1) == []
    fits.submit(OWNER, "b", [Job(2)])
    assert [s for s, _ in until(fits, 1)] == ["b"]


def test_a_fit_that_kills_its_worker_twice_has_failed(fits: Fits) -> None:
    fits.submit(OWNER, "a", [Job(1, dies=True)])
    assert until(fits, 1) == []
    fits.submit(OWNER, "a", [Job(1, dies=True)])
    assert failures(until(fits, 1)) == {"a": "the worker that made it has died, twice"}
    fits.submit(OWNER, "a", [Job(2)])
    assert [r.at for _, r in until(fits, 1)] == [2]


def test_a_fit_that_never_ends_is_given_up_and_the_others_go_on() -> None:
    fits = Fits(1, Limits(longest_s=0.5))
    fits.submit(OWNER, "a", [Job(1, seconds=3600)])
    assert failures(until(fits, 1)) == {"a": "it has not ended within 0.5 s"}
    assert (fits.failed, fits.under_way) == (1, 0)
    fits.submit(OWNER, "b", [Job(2)])
    assert [s for s, _ in until(fits, 1)] == ["b"]
    fits.close()
    assert (fits.under_way, fits.processes) == (0, [])


def test_a_fit_that_never_ends_is_given_up_though_nobody_waits_for_it_any_more() -> None:
    fits = Fits(1, Limits(longest_s=0.5))
    fits.submit(OWNER, "a", [Job(1, seconds=3600)])
    time.sleep(0.1)
    fits.forget(OWNER)
    assert until(fits, 1) == []
    assert (fits.failed, fits.under_way) == (1, 0)
    fits.close()


def test_closing_ends_a_fit_that_hangs_at_once() -> None:
    fits = Fits(1)
    fits.submit(OWNER, "a", [Job(1, seconds=3600)])
    (worker,) = fits.processes
    fits.close()
    assert ended(worker)


def test_workers_that_have_nothing_to_do_end_and_come_back() -> None:
    fits = Fits(1, Limits(idle_s=0.0))
    fits.submit(OWNER, "a", [Job(1)])
    (worker,) = fits.processes
    assert len(until(fits, 1)) == 1
    time.sleep(0.01)
    fits.finished(OWNER)
    assert fits.processes == []
    assert ended(worker)
    fits.submit(OWNER, "a", [Job(2)])
    assert [r.at for _, r in until(fits, 1)] == [2]
    fits.close()


def ended(pid: int, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_an_owner_gets_its_own_results_alone(fits: Fits) -> None:
    fits.submit(OTHER, "a", [Job(1)])
    fits.submit(OWNER, "a", [Job(2)])
    assert [r.at for _, r in until(fits, 1)] == [2]
    assert [r.at for _, r in fits.finished(OTHER)] == [1]
    assert fits.finished(OTHER) == []


def test_an_owner_that_is_no_more_gets_no_result(fits: Fits) -> None:
    fits.submit(OWNER, "a", [Job(1, seconds=0.1)])
    fits.forget(OWNER)
    fits.submit(OWNER, "b", [Job(2)])
    assert [s for s, _ in until(fits, 2)] == ["b"]


def test_all_dgds_of_a_process_share_the_same_workers_until_the_last_has_gone() -> None:
    with shared_fits() as first:
        with shared_fits() as second:
            second.submit(OWNER, "a", [Job(1)])
            (worker,) = second.processes
        assert first is second
        assert first.processes == [worker]
    assert first.processes == []
    assert ended(worker)
    with shared_fits() as later:
        assert later is not first


PARENT = """
import sys, time
from fit_jobs import Job
from headrace.streams.runtime.fits import Fits
if __name__ == "__main__":
    fits = Fits(1)
    fits.submit("ml/llama", "a", [Job(1)])
    while not fits.finished("ml/llama"):
        time.sleep(0.02)
    if sys.argv[1] == "busy":
        fits.submit("ml/llama", "a", [Job(2, seconds=3600)])
    print(fits.processes[0], flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize("doing", ["idle", "busy"])
def test_workers_end_with_a_planner_that_was_killed(doing: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])])
    parent = subprocess.Popen(
        [sys.executable, str(script), doing], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert ended(worker)


def test_a_forecaster_that_waits_for_its_fits_says_what_one_that_makes_them_does(fits: Fits) -> None:
    inline, waiting = make_forecaster("arima"), make_forecaster("arima")
    inline.inline = waiting.inline = False
    for n in range(40):
        for forecaster in (inline, waiting):
            forecaster.observe(100 + 30 * math.sin(n / 4) + n % 3)
    inline.inline = True
    fits.submit(OWNER, "rate", waiting.fit_jobs())
    ((_, result),) = until(fits, 1)
    assert waiting.take_fit(result)
    assert waiting.fit_jobs() == ()
    assert waiting.forecast(3) == pytest.approx(inline.forecast(3), rel=1e-6)


@pytest.mark.parametrize(("count", "waiting", "named"), [(0, 1, "workers"), (1, -1, "waiting")])
def test_a_pool_of_nobody_is_refused(count: int, waiting: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Fits(count, Limits(waiting=waiting))
