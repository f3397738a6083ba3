"""Level and trend. Where nothing else is said, numbers are those of reference-semantics 4.8 and of case T8."""

import json
import math
import subprocess
import sys

import pytest

from headrace.models.forecast.kalman import Kalman
from headrace.schemas.errors import ConfigError, StateError


def series(kalman: Kalman, values: list[float]) -> list[float | None]:
    """The forecast after each value."""
    out = []
    for value in values:
        kalman.observe(value)
        out.append(kalman.forecast())
    return out


def test_the_forecast_never_goes_below_zero():  # reference: -2.874599, -5.838502, -6.003956 for the three zeros
    found = series(Kalman(min_points=1), [0, 0, 10, 12, 15, 0, 0, 0, 40, 0])
    assert found == pytest.approx([0, 0, 10, 12.984585, 17.874297, 0, 0, 0, 23.066622, 11.571985], abs=1e-6)


def test_the_forecast_is_the_last_value_until_there_are_points_enough():  # case T8, dynamo#14493
    found = series(Kalman(min_points=5), [100, 80, 60, 40, 20, 10, 0, 0])
    assert found == pytest.approx([100, 80, 60, 40, 0.104, 0, 0, 0], abs=1e-3)


def test_the_logarithm_falls_no_lower_either():  # case T8
    found = series(Kalman(log1p=True), [100, 80, 60, 40, 20, 10, 0, 0])
    assert found == pytest.approx([100, 80, 60, 40, 13.926, 6.439, 0.069, 0], abs=1e-3)


def test_the_logarithm_follows_growth():
    found = series(Kalman(log1p=True, min_points=1), [0, 0, 10, 12, 15, 0, 0, 0, 40, 0])
    assert found == pytest.approx([0, 0, 10, 13.114305, 18.54303, 0, 0, 0, 3.600309, 0.712376], abs=1e-5)


def test_asking_changes_nothing():
    asked, silent = Kalman(min_points=1), Kalman(min_points=1)
    for value in [10, 12, 15, 20]:
        for steps in (1, 5, 1):
            asked.forecast(steps)
        asked.observe(value)
        silent.observe(value)
    assert asked.forecast() == silent.forecast() == pytest.approx(23.60023684195327, rel=1e-12)


def test_an_exact_ramp_goes_on_for_as_many_windows_as_asked():
    kalman = Kalman()
    series(kalman, [float(v) for v in range(10, 1010, 10)])
    assert kalman.forecast() == pytest.approx(1010, rel=1e-3)
    assert kalman.forecast(10) == pytest.approx(1100, rel=1e-3)


def test_a_constant_series_is_forecast_as_itself():  # case T9
    assert series(Kalman(), [7] * 20)[-1] == pytest.approx(7)
    assert series(Kalman(log1p=True), [7] * 20)[-1] == pytest.approx(7)


def test_nothing_is_known_before_the_first_value_and_a_zero_is_known():
    kalman = Kalman()
    assert kalman.forecast() is None
    assert series(kalman, [0, 0]) == [0, 0]


def test_leading_idle_teaches_nothing():
    idle_first, at_once = Kalman(min_points=1), Kalman(min_points=1)
    series(idle_first, [0] * 50)
    assert series(idle_first, [10, 12, 15]) == series(at_once, [10, 12, 15])


@pytest.mark.parametrize("nothing", [math.nan, math.inf, -math.inf, -3.0])
def test_what_is_no_value_is_not_learned(nothing):  # case T2; the reference takes NaN for 0
    assert series(Kalman(min_points=1), [10, 12, nothing])[-1] == pytest.approx(12.984585)


def test_a_forecast_does_not_run_away():
    kalman = Kalman(log1p=True)
    series(kalman, [1, 10, 100, 1000, 10_000])
    assert kalman.forecast(100) == 30_000  # three times the largest value seen


def test_a_forecaster_goes_on_from_its_state_as_if_nothing_had_happened():
    kalman, copy = Kalman(log1p=True), Kalman(log1p=True)
    series(kalman, [3.3, 0, 8, 1e-3, 7, 9.5])
    copy.load_state(json.loads(json.dumps(kalman.to_state())))
    assert copy.forecast(3) == kalman.forecast(3)
    assert series(copy, [5, 6, 0]) == series(kalman, [5, 6, 0])


@pytest.mark.parametrize("damage", [{"x": [1.0]}, {"p": "?"}, {"history": {}}, {"log1p": True}])
def test_a_damaged_or_foreign_state_is_refused_and_changes_nothing(damage):
    kalman = Kalman()
    series(kalman, [1, 2, 3, 4, 5, 6])
    before = kalman.to_state()
    with pytest.raises(StateError, match="kalman"):
        kalman.load_state(Kalman().to_state() | damage)
    assert kalman.to_state() == before


@pytest.mark.parametrize("bad", [{"q_level": -1.0}, {"q_trend": math.nan}, {"r": math.inf}, {"min_points": 0}])
def test_impossible_options_are_refused_by_name(bad):
    with pytest.raises(ConfigError, match=f"kalman_{next(iter(bad))}"):
        Kalman(**bad)


def test_without_filterpy_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "filterpy.kalman", None)
    with pytest.raises(ConfigError, match=r"pip install headrace\[kalman\]"):
        Kalman()


def test_filterpy_is_imported_only_where_it_is_used():
    code = (
        "import sys; from headrace.models.forecast.registry import make_forecaster as make; make('constant');"
        "assert 'filterpy' not in sys.modules; make('kalman'); assert 'filterpy' in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
