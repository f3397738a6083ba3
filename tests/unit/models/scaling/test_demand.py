"""What arrives, from traffic windows."""

import msgspec
import pytest
from world import window

from headrace.models.scaling.demand import (
    answer_cv2,
    dispersion,
    lengths,
    merged,
    parts_of,
    prompt_mix,
    rate,
    slice_of,
    trend,
)
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


def test_the_mix_of_prompts_comes_from_the_histogram() -> None:
    # half in 0..1000, half in 1000..2000, and a mean of 1000: both stand in the middle of their bucket
    isl = Distribution(count=100, mean=1000.0, bounds=[1000.0, 2000.0], counts=[50, 50, 0])
    mix = prompt_mix(slices(msgspec.structs.replace(window(0, 10, 100), isl=isl)))
    assert mix is not None
    assert mix.multiples == pytest.approx((0.5, 1.5))
    assert mix.cv2 == pytest.approx(0.25)


def test_what_is_in_a_bucket_stands_where_the_mean_is_the_one_that_was_measured() -> None:
    isl = Distribution(count=100, mean=800.0, bounds=[1000.0, 2000.0], counts=[50, 50, 0])
    assert [(p.lower, p.count, p.length) for p in parts_of(isl)] == [(0.0, 50, 300.0), (1000.0, 50, 1300.0)]


def test_buckets_of_many_windows_are_put_together() -> None:
    low = Distribution(count=40, mean=250.0, bounds=[1000.0, 2000.0], counts=[40, 0, 0])
    both = Distribution(count=40, mean=1000.0, bounds=[1000.0, 2000.0], counts=[20, 20, 0])
    mix = prompt_mix(
        slices(*(msgspec.structs.replace(window(t, t + 10, 40), isl=d) for t, d in ((0, low), (10, both))))
    )
    assert mix is not None
    assert mix.shares == (0.75, 0.25)
    assert mix.multiples == pytest.approx((1000.0 / 3 / 625.0, 1500.0 / 625.0))


def test_the_mix_is_unknown_without_a_histogram_or_with_too_few_prompts() -> None:
    few = Distribution(count=2, mean=1000.0, bounds=[1000.0, 2000.0], counts=[1, 1, 0])
    assert prompt_mix(slices(msgspec.structs.replace(window(0, 10, 2), isl=few))) is None
    assert prompt_mix(slices(window(0, 10, 100))) is None


def test_the_spread_of_answers_comes_from_their_histogram() -> None:
    osl = Distribution(count=100, mean=200.0, bounds=[200.0, 400.0], counts=[50, 50, 0])
    assert answer_cv2(slices(msgspec.structs.replace(window(0, 10, 100), osl=osl))) == pytest.approx(0.25)
    assert answer_cv2(slices(window(0, 10, 100))) is None


def counted(*requests, seconds=5):  # type: ignore[no-untyped-def]
    return slices(*(window(seconds * i, seconds * (i + 1), n) for i, n in enumerate(requests)))


def test_arrivals_that_alternate_are_dispersed_and_even_ones_are_not() -> None:
    assert dispersion(counted(*[100] * 12)) == 0.0
    assert dispersion(counted(*[90, 110] * 6)) == pytest.approx(20**2 / 200)


def test_a_slow_rise_is_no_dispersion_and_a_jump_is_bounded() -> None:
    assert dispersion(counted(*range(100, 124, 2))) < 0.1
    assert dispersion(counted(*[0] * 10, *[10**6] * 10)) == 50.0


def test_the_dispersion_of_a_few_windows_is_unknown() -> None:
    assert dispersion(counted(*[90, 110] * 5)) is None  # nine pairs
    assert dispersion(counted(*[0] * 20)) is None


def test_windows_of_other_lengths_are_compared_by_their_rates() -> None:
    mixed = slices(*(window(10 * i, 10 * i + (5 if i % 2 else 10), 50 if i % 2 else 100) for i in range(12)))
    assert dispersion(mixed) == 0.0


def test_slices_are_put_together_from_the_newest_and_an_old_rest_is_dropped() -> None:
    found = merged(counted(1, 2, 4, 8, 16), 10)
    assert [(s.end, s.seconds, s.requests) for s in found] == [(15.0, 10.0, 6), (25.0, 10.0, 24)]


def test_a_clear_trend_counts_almost_whole_and_one_within_the_noise_hardly() -> None:
    # 100/s, then 200/s, means of a minute each: the step of 100/s has a variance of 300 / 60 = 5
    clear = trend(counted(*[500] * 12, *[1000] * 12), 120.0, 60.0, 1.0)
    assert clear == pytest.approx(100 / 60 * 100**2 / (100**2 + 5))
    noise = trend(counted(*[500] * 12, *[505] * 12), 120.0, 60.0, 1.0)
    assert noise == pytest.approx(1 / 60 * 1 / (1 + 201 / 60))


def test_a_fall_is_a_negative_trend_and_an_unknown_past_none() -> None:
    assert trend(counted(*[1000] * 12, *[500] * 12), 120.0, 60.0, 1.0) < 0
    assert trend(counted(*[500] * 12), 60.0, 60.0, 1.0) == 0.0
    assert trend(counted(*[500] * 24), 120.0, 60.0, 1.0) == 0.0
