"""The seasonal line: seasons found, followed, and not invented."""

import json
import math

import numpy as np
import pytest

from headrace.models.forecast.recursive import Line
from headrace.models.forecast.season import find_period, seasonal_change
from headrace.models.forecast.seasonal import Seasonal
from headrace.schemas.errors import ConfigError, StateError


def error(forecaster, values, steps=1) -> float:
    """Absolute errors over the second half, as a share of those of the last value."""
    foretold = []
    for value in values:
        forecaster.observe(value)
        foretold.append(forecaster.forecast(steps))
    half = len(values) // 2
    pairs = range(half, len(values) - steps)
    return sum(abs(foretold[n] - values[n + steps]) for n in pairs) / sum(
        abs(values[n] - values[n + steps]) for n in pairs
    )


def day(n: int, period: int = 144) -> float:
    """Load with a morning and an evening peak."""
    phase = 2 * math.pi * n / period
    return 100 + 60 * math.sin(phase) + 25 * math.sin(2 * phase)


@pytest.mark.parametrize("period", [12, 24, 144, 480, 1008])
def test_the_length_of_a_season_is_found_under_noise(period):
    rng = np.random.default_rng(period)
    values = np.array([day(n, period) for n in range(2016)]) + rng.normal(0, 20, 2016)
    assert find_period(values) == pytest.approx(period, rel=0.02)


@pytest.mark.parametrize("seed", range(8))
def test_no_season_is_seen_in_noise(seed):
    assert find_period(np.random.default_rng(seed).poisson(20, 500).astype(float)) == 0


@pytest.mark.parametrize(
    "values", [[], [3.0] * 50, list(range(200)), [1.0] * 99 + [5.0]], ids=["none", "flat", "ramp", "step"]
)
def test_no_season_is_seen_where_nothing_repeats(values):
    assert find_period(np.array(values, dtype=float)) == 0


def test_a_known_season_stays_where_another_length_is_hardly_better():
    values = np.array([day(n, 48) for n in range(480)])
    assert find_period(values, known=49) == 49
    assert find_period(values, known=30) == 48


@pytest.mark.parametrize("steps", [1, 7, 23, 24, 30])
def test_the_change_at_the_same_place_of_earlier_seasons_is_told_for_every_horizon(steps):
    values = np.array([day(n, 24) for n in range(24 * 6)])
    change = day(24 * 6 - 1 + steps, 24) - values[-1]
    assert seasonal_change(values, 24, steps) == pytest.approx(change, abs=3)  # the median of three places


def test_without_an_earlier_season_there_is_no_change_to_tell():
    assert seasonal_change(np.arange(20.0), 24, 1) == 0.0


def test_a_day_of_ten_minute_windows_is_forecast_hours_ahead():
    values = [day(n) for n in range(144 * 6)]
    assert error(Seasonal(), values, steps=18) < 0.2


def test_a_week_is_remembered():
    """Weekends at a tenth: on Saturday morning the load of last Saturday is foretold, not that of Friday."""
    values = [day(n) * (0.1 if n // 144 % 7 >= 5 else 1.0) for n in range(144 * 21)]
    assert error(Seasonal(), values, steps=6) < 0.7


def test_noise_around_a_level_is_smoothed():
    rng = np.random.default_rng(1)
    assert error(Seasonal(), [float(v) for v in rng.poisson(50, 400)]) < 0.82


def test_a_random_walk_is_left_alone():
    rng = np.random.default_rng(2)
    assert error(Seasonal(), [float(v) for v in 1000 + rng.normal(size=600).cumsum()]) < 1.05


def test_one_burst_does_not_bend_the_line():
    line, bent = Line.empty(1), Line.empty(1)
    rng = np.random.default_rng(3)
    for n in range(200):
        x = np.array([rng.normal()])
        target = 2 * float(x[0]) + 0.1 * rng.normal()
        line.learn(x, target)
        bent.learn(x, target + (500 if n == 150 else 0))
    assert bent.predict(np.array([1.0])) == pytest.approx(line.predict(np.array([1.0])), rel=0.1)


def test_a_line_begins_at_nothing_and_scales_with_its_data():
    small, large = Line.empty(2), Line.empty(2)
    assert small.predict(np.array([5.0, 5.0])) == 0.0
    for n in range(50):
        x = np.array([math.sin(n), math.cos(3 * n)])
        small.learn(x, x[0] - x[1])
        large.learn(1e9 * x, 1e9 * (x[0] - x[1]))
    assert large.predict(np.array([1e9, 0.0])) == pytest.approx(1e9 * small.predict(np.array([1.0, 0.0])))


def test_zeros_after_a_rearm_teach_nothing():
    seasonal = Seasonal()
    for value in [5.0, 6.0, 7.0, 8.0, 9.0, 8.0]:
        seasonal.observe(value)
    before = seasonal.forecast()
    seasonal.rearm()
    seasonal.observe(0.0)
    assert seasonal.forecast() == before


@pytest.mark.parametrize(
    "damage", [{"values": "?"}, {"log1p": True}, {"lines": []}, {"waiting": ""}, {"means": None}, {"history": {}}]
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    seasonal = Seasonal()
    for n in range(40):
        seasonal.observe(day(n))
    before = seasonal.to_state()
    if damage == {"waiting": ""}:
        damage = {"waiting": before["waiting"][:-8]}
    with pytest.raises(StateError, match="seasonal"):
        seasonal.load_state(json.loads(json.dumps(before)) | damage)
    assert seasonal.to_state() == before


def test_an_option_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="min_points"):
        Seasonal(min_points=0)
