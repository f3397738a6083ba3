"""Windows from arrivals, warm-ups, horizons, scores."""

import math

import pytest

from headrace.models.forecast.base import History, steps_ahead, warm_up
from headrace.models.forecast.constant import Constant
from headrace.models.forecast.evaluate import Score, replay, score
from headrace.models.forecast.horizons import HORIZONS, between
from headrace.models.forecast.kalman import Kalman
from headrace.models.forecast.registry import make_forecaster
from headrace.models.forecast.windows import lengths, windows


def arrivals(*at: float) -> list[tuple[float, int, int]]:
    return [(t, 100, 10) for t in at]


def test_empty_windows_in_the_middle_are_kept():  # case T10, dynamo#10670
    found = windows(arrivals(0, 1, 60, 61, 62, *[240 + n for n in range(5)]), 60.0)
    assert [w.requests for w in found] == [2, 3, 0, 0, 5]
    assert [w.isl for w in found] == [100, 100, None, None, 100]  # no length is invented


def test_a_trace_begins_with_its_first_arrival_and_ends_with_its_last():
    assert [w.requests for w in windows(arrivals(1e9 + 59, 1e9, 1e9 + 61), 60.0)] == [2, 1]
    assert windows([], 60.0) == []


def test_lengths_are_means_over_the_requests_of_a_window():
    (window,) = windows([(0, 10, 1), (1, 30, 2)], 60.0)
    assert (window.isl, window.osl) == (20.0, 1.5)


def test_a_window_without_requests_keeps_the_last_lengths():
    assert lengths([None, 5.0, None, None, 6.0]) == [5.0, 5.0, 5.0, 6.0]


def test_a_warm_up_is_what_came_before_the_first_live_value():
    warm, live = Kalman(), Kalman()
    warm_up(warm, [10.0, 12.0, 15.0, 11.0, 14.0])
    for value in [10.0, 12.0, 15.0, 11.0, 14.0]:
        live.observe(value)
    assert warm.forecast() == live.forecast()


@pytest.mark.parametrize("name", ["constant", "kalman", "seasonal", "auto"])
def test_zeros_before_the_first_live_request_are_leading_idle_again(name):
    forecaster = make_forecaster(name)
    warm_up(forecaster, [10.0, 12.0, 15.0, 11.0, 14.0])
    before = forecaster.forecast()
    for _ in range(3):
        forecaster.observe(0.0)
    assert forecaster.forecast() == before
    forecaster.observe(20.0)
    forecaster.observe(0.0)
    assert forecaster.to_state()["history"]["points"] == 7


def test_a_state_from_before_warm_ups_is_still_read():
    assert History.from_state({"last": 0.0, "largest": 0.0, "points": 0}).idle
    assert not History.from_state({"last": 0.0, "largest": 4.0, "points": 3}).idle


@pytest.mark.parametrize(
    ("seconds", "interval_s", "steps"), [(30, 10, 3), (30, 60, 1), (180, 180, 1), (181, 180, 2), (0, 5, 1)]
)
def test_a_horizon_covers_the_seconds_until_a_worker_serves(seconds, interval_s, steps):
    assert steps_ahead(seconds, interval_s) == steps


@pytest.mark.parametrize("steps", range(1, 40))
def test_the_shares_of_horizons_sum_to_one_and_lie_around_the_steps(steps):
    found = between(steps)
    assert sum(share for _, share in found) == pytest.approx(1.0)
    assert all(0 <= share <= 1 for _, share in found)
    if steps in HORIZONS:
        assert found == [(HORIZONS.index(steps), 1.0)]


def test_a_score_compares_each_forecast_with_the_value_that_it_was_for():
    foretold = replay(Constant(), [1.0, 3.0, 6.0, 6.0], [1, 2])
    assert score([1.0, 3.0, 6.0, 6.0], foretold[1], 1) == Score(mae=5 / 3, wape=5 / 15, windows=3)
    assert score([1.0, 3.0, 6.0, 6.0], foretold[2], 2) == Score(mae=4.0, wape=8 / 12, windows=2)


def test_two_errors_of_opposite_sign_do_not_cancel():  # case T11, dynamo#14515
    assert score([0.0, 10.0, 20.0], [20.0, 10.0], 1).mae == 10.0


def test_where_nothing_can_be_judged_there_is_no_score():
    assert score([5.0], [5.0], 1) is None
    assert score([0.0, 0.0, 0.0], [0.0, 0.0], 1) is None
    assert math.isfinite(score([0.0, 0.0, 1.0], [9.0, 9.0], 1).wape)
