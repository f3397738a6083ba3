"""Counter arithmetic: resets, new and vanished series, histograms as one thing."""

import math
from itertools import pairwise

import pytest

from headrace.connectors.sources.counters import (
    NOTHING,
    Histogram,
    distribution,
    histogram_increase,
    increase,
    is_count,
    is_sum,
    mean,
    merge,
    total_histogram_increase,
    total_increase,
)


def added_over(readings: list[dict[str, float]]) -> float:
    """What a sequence of scrapes added, the first being the baseline."""
    return sum(total_increase(before, now) for before, now in pairwise(readings))


def test_a_counter_that_rises_adds_the_difference() -> None:
    assert increase(5.0, 8.0) == 3.0


def test_a_counter_that_stands_adds_nothing() -> None:
    assert increase(5.0, 5.0) == 0.0


def test_a_counter_below_its_last_value_was_reset_and_adds_what_it_shows() -> None:
    assert increase(15.0, 2.0) == 2.0


def test_a_new_series_counts_from_zero() -> None:  # prometheus#12967: its first sample is lost there
    assert increase(None, 8.0) == 8.0


def test_a_pod_that_replaces_another_counts_from_zero() -> None:  # T5, prometheus#12967
    old = [{"old": v} for v in (3.0, 8.0, 15.0, 21.0, 21.0)]
    new = [{"new": v} for v in (8.0, 9.0, 13.0, 19.0, 19.0)]
    assert added_over(old + new) == 37.0  # 18 and 19; a difference per series finds 29


def test_a_reset_inside_a_series_adds_the_new_value() -> None:  # T5
    assert added_over([{"a": v} for v in (10.0, 15.0, 2.0, 6.0)]) == 11.0


def test_a_series_that_vanishes_adds_nothing_and_comes_back_from_zero() -> None:
    assert added_over([{"a": 10.0, "b": 1.0}, {"b": 2.0}, {"a": 4.0, "b": 2.0}]) == 1.0 + 4.0


def test_the_first_scrape_is_a_baseline() -> None:
    assert added_over([{"a": 1000.0}]) == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, -9223372036854776.0, 1e13])
def test_what_is_no_count_is_not_taken_for_one(value: float) -> None:  # T6, keda#7475
    assert not is_count(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.5, 1e16])
def test_what_is_no_sum_is_not_taken_for_one(value: float) -> None:  # T6
    assert not is_sum(value)


@pytest.mark.parametrize("value", [0.0, 1.0, 2.0**40])
def test_counts_are_taken(value: float) -> None:
    assert is_count(value)
    assert is_sum(value)


def histogram(count: float, total: float, *cumulative: float) -> Histogram:
    """Buckets up to 1, 2, 4."""
    return Histogram(count, total, (1.0, 2.0, 4.0), cumulative)


def test_a_histogram_adds_its_differences() -> None:
    added = histogram_increase(histogram(4, 10.0, 1, 2, 3), histogram(6, 13.0, 2, 4, 5))
    assert added == histogram(2, 3.0, 1, 2, 2)


def test_a_histogram_whose_count_drops_is_all_new_though_its_sum_has_grown() -> None:
    """After a restart five long prompts weigh more than a hundred short ones did."""
    now = histogram(5, 1200.0, 0, 0, 0)
    assert histogram_increase(histogram(100, 1000.0, 10, 20, 30), now) == now


def test_a_histogram_whose_sum_drops_is_all_new_though_its_count_has_not() -> None:
    now = histogram(100, 10.0, 100, 100, 100)
    assert histogram_increase(histogram(100, 1000.0, 10, 20, 30), now) == now


def test_a_histogram_with_a_bucket_that_drops_is_all_new() -> None:
    now = histogram(101, 1001.0, 5, 21, 31)
    assert histogram_increase(histogram(100, 1000.0, 10, 20, 30), now) == now


def test_other_bounds_leave_count_and_sum() -> None:
    now = Histogram(6, 13.0, (8.0,), (6.0,))
    assert histogram_increase(histogram(4, 10.0, 1, 2, 3), now) == Histogram(2, 3.0)


def test_frontends_are_weighted_by_what_they_counted() -> None:
    """The idle one does not count, and the mean is no mean of means (reference weak spot 28)."""
    whole = merge([Histogram(1, 1000.0), Histogram(99, 9900.0), NOTHING])
    assert mean(whole) == pytest.approx(109.0)


def test_buckets_of_frontends_are_summed() -> None:
    assert merge([histogram(2, 3.0, 1, 2, 2), histogram(1, 9.0, 0, 0, 0)]) == histogram(3, 12.0, 1, 2, 2)


def test_buckets_with_different_bounds_are_left_out() -> None:
    assert merge([histogram(2, 3.0, 1, 2, 2), Histogram(1, 9.0, (8.0,), (0.0,))]) == Histogram(3, 12.0)


def test_an_idle_frontend_with_other_buckets_spoils_nothing() -> None:
    assert merge([histogram(2, 3.0, 1, 2, 2), Histogram(0, 0.0, (8.0,), (0.0,))]) == histogram(2, 3.0, 1, 2, 2)


def test_series_of_a_histogram_are_summed_from_their_own_past() -> None:
    before = {"a": Histogram(10, 100.0)}
    now = {"a": Histogram(12, 130.0), "b": Histogram(3, 9.0)}
    assert total_histogram_increase(before, now) == Histogram(5, 39.0)


def test_a_distribution_has_buckets_of_its_own_and_an_open_last_one() -> None:
    made = distribution(histogram(6, 30.0, 1, 3, 4))
    assert (made.count, made.mean, made.bounds, made.counts) == (6, 5.0, [1.0, 2.0, 4.0], [1, 2, 1, 2])


def test_nothing_counted_is_a_valid_zero_without_a_mean() -> None:  # T1, dynamo#6985
    made = distribution(NOTHING)
    assert (made.count, made.mean) == (0, None)


@pytest.mark.parametrize("cumulative", [(3, 2, 4), (1, 3, 7), (0.5, 1, 1.5)])
def test_buckets_that_contradict_each_other_are_left_out(cumulative: tuple[float, ...]) -> None:
    made = distribution(histogram(6, 30.0, *cumulative))
    assert (made.count, made.mean, made.bounds, made.counts) == (6, 5.0, [], [])


def test_a_series_without_buckets_still_has_a_mean() -> None:
    made = distribution(Histogram(2, 6.0))
    assert (made.mean, made.counts) == (3.0, [])
