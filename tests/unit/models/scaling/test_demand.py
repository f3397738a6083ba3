"""What arrives, from traffic windows."""

import msgspec
import pytest
from world import window

from headrace.models.scaling.demand import lengths, rate, slice_of, spread
from headrace.schemas.traffic import Distribution


def slices(*windows):  # type: ignore[no-untyped-def]
    return [s for s in map(slice_of, windows) if s is not None]


def test_a_rate_is_per_second_of_known_time() -> None:
    kept = slices(window(0, 10, 100), window(10, 20, None), window(20, 40, 100))
    assert rate(kept, since=0.0) == pytest.approx(200 / 30)
    assert rate(kept, since=15.0) == 5.0
    assert rate(kept, since=0.0, until=15.0) == 10.0


def test_no_known_window_is_no_rate_and_an_idle_one_is_zero() -> None:
    assert rate(slices(window(0, 10, None)), since=0.0) is None
    assert rate(slices(window(0, 10, 0)), since=0.0) == 0.0


def test_lengths_are_weighted_by_what_was_counted() -> None:
    kept = slices(window(0, 10, 30, isl=1000, osl=100), window(10, 20, 10, isl=2000, osl=500))
    assert lengths(kept) == (1250.0, 200.0)
    assert lengths(slices(window(0, 10, 0))) is None


def test_the_spread_of_prompts_comes_from_the_histogram() -> None:
    # half at 500 (middle of 0..1000), half at 1500: mean 1000, squared coefficient of variation 0.25
    isl = Distribution(count=100, mean=1000.0, bounds=[1000.0, 2000.0], counts=[50, 50, 0])
    assert spread(slices(msgspec.structs.replace(window(0, 10, 100), isl=isl))) == pytest.approx(0.25)


def test_the_spread_is_unknown_without_a_histogram_or_with_too_few_prompts() -> None:
    few = Distribution(count=2, mean=1000.0, bounds=[1000.0, 2000.0], counts=[1, 1, 0])
    assert spread(slices(msgspec.structs.replace(window(0, 10, 2), isl=few))) is None
    assert spread(slices(window(0, 10, 100))) is None
