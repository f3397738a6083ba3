"""The same series in windows of another length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.models.forecast.resample import resample

lengths = st.floats(1.0, 3600.0)
series = st.lists(st.floats(0.0, 1e9), min_size=1, max_size=60)


def test_nothing_stays_nothing():
    assert resample([], 60.0, 180.0, most=9) == []


def test_longer_windows_hold_the_mean_and_end_with_the_newest_value():
    assert resample([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 60.0, 180.0, most=9) == pytest.approx([2.0, 5.0])


def test_shorter_windows_repeat_the_values():
    assert resample([1.0, 4.0], 180.0, 60.0, most=9) == pytest.approx([1.0, 1.0, 1.0, 4.0, 4.0, 4.0])


def test_windows_that_are_no_multiple_of_each_other_share_what_they_overlap():
    assert resample([0.0, 6.0, 0.0], 60.0, 90.0, most=9) == pytest.approx([2.0, 2.0])


def test_less_than_one_window_is_one_over_all_there_is():
    assert resample([1.0, 3.0], 60.0, 3600.0, most=9) == pytest.approx([2.0])


@given(series, lengths, lengths, st.integers(1, 50))
def test_means_stay_within_what_was_seen_and_the_newest_are_kept(values, from_s, to_s, most):
    found = resample(values, from_s, to_s, most)
    assert 1 <= len(found) <= most
    assert min(values) <= min(found) <= max(found) <= max(values)


@given(st.floats(0.0, 1e9), st.integers(1, 60), lengths, lengths)
def test_a_constant_series_stays_so_to_the_bit(value, count, from_s, to_s):
    assert set(resample([value] * count, from_s, to_s, most=50)) == {value}
