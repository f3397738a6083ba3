"""Fits in worker processes: none waits, none is lost for good, none is made twice."""

import math
import os
import time
from collections.abc import Iterator

import pytest
from fit_jobs import Job

from headrace.models.forecast.fitting import FitResult
from headrace.models.forecast.registry import make_forecaster
from headrace.streams.runtime.fits import Fits


@pytest.fixture
def fits() -> Iterator[Fits]:
    made = Fits(workers=1, waiting=2)
    yield made
    made.close()


def until(fits: Fits, count: int, seconds: float = 60.0) -> list[tuple[str, FitResult]]:
    """Waits for so many results, or until nothing is under way any more."""
    found: list[tuple[str, FitResult]] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and fits.under_way and time.monotonic() < deadline:
        time.sleep(0.02)
        found += fits.finished()
    return found


def test_a_fit_is_made_in_another_process_and_comes_back_with_the_name_of_its_series(fits: Fits) -> None:
    assert fits.submit("ml/llama rate", [Job(5)]) == 1
    ((series, result),) = until(fits, 1)
    assert (series, result.at) == ("ml/llama rate", 5)
    assert result.values is not None
    assert result.values["pid"] != os.getpid()


def test_a_fit_that_is_under_way_is_not_made_twice(fits: Fits) -> None:
    assert fits.submit("a", [Job(5, seconds=0.2)]) == 1
    assert fits.submit("a", [Job(6)]) == 0
    assert fits.submit("a", [Job(6, kind="prophet")]) == 1
    assert {(s, r.kind, r.at) for s, r in until(fits, 2)} == {("a", "arima", 5), ("a", "prophet", 6)}
    assert fits.submit("a", [Job(6)]) == 1


def test_what_finds_no_room_is_counted_and_not_kept(fits: Fits) -> None:
    started = [fits.submit(name, [Job(1, seconds=0.1)]) for name in "abcde"]
    assert started == [1, 1, 1, 0, 0]
    assert fits.refused == 2


def test_an_error_costs_its_own_fit_alone(fits: Fits) -> None:
    fits.submit("a", [Job(1, error="no convergence")])
    fits.submit("b", [Job(2)])
    assert [s for s, _ in until(fits, 2)] == ["b"]
    assert fits.failed == 1


def test_after_a_worker_has_died_fits_go_on_with_another(fits: Fits) -> None:
    fits.submit("a", [Job(1, dies=True)])
    assert until(fits, 1) == []
    assert fits.failed >= 1
    fits.submit("b", [Job(2)])
    assert [s for s, _ in until(fits, 1)] == ["b"]


def test_a_fit_that_never_ends_is_given_up() -> None:
    fits = Fits(longest_s=0.3)
    fits.submit("a", [Job(1, seconds=3600)])
    assert until(fits, 1) == []
    assert (fits.failed, fits.under_way) == (1, 0)
    fits.submit("b", [Job(2)])
    time.sleep(0.01)
    fits.close()
    assert fits.under_way == 0


def test_a_series_that_is_no_more_gets_no_result(fits: Fits) -> None:
    fits.submit("a", [Job(1, seconds=0.1)])
    fits.forget("a")
    fits.submit("b", [Job(2)])
    assert [s for s, _ in until(fits, 2)] == ["b"]


def test_a_forecaster_that_waits_for_its_fits_says_what_one_that_makes_them_does(fits: Fits) -> None:
    inline, waiting = make_forecaster("arima"), make_forecaster("arima")
    inline.inline = waiting.inline = False
    for n in range(40):
        for forecaster in (inline, waiting):
            forecaster.observe(100 + 30 * math.sin(n / 4) + n % 3)
    inline.inline = True
    fits.submit("rate", waiting.fit_jobs())
    ((_, result),) = until(fits, 1)
    assert waiting.take_fit(result)
    assert waiting.fit_jobs() == ()
    assert waiting.forecast(3) == pytest.approx(inline.forecast(3), rel=1e-6)


@pytest.mark.parametrize("bad", [{"workers": 0}, {"waiting": -1}])
def test_a_pool_of_nobody_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Fits(**bad)
