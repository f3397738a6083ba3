"""The last value again."""

import json
import math

import pytest

from headrace.models.forecast.base import Forecaster
from headrace.models.forecast.constant import Constant
from headrace.schemas.errors import StateError


def series(forecaster: Forecaster, values: list[float]) -> list[float | None]:
    """The forecast after each value."""
    out = []
    for value in values:
        forecaster.observe(value)
        out.append(forecaster.forecast())
    return out


def test_the_forecast_is_the_last_value():  # reference-semantics 4.8, where NaN counts as a zero; here see below
    assert series(Constant(), [0, 0, 5, 0, 7]) == [0, 0, 5, 0, 7]


def test_nothing_is_known_before_the_first_value():
    assert Constant().forecast() is None


def test_a_real_zero_is_known():
    assert series(Constant(), [0]) == [0.0]


@pytest.mark.parametrize("nothing", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_value_is_no_zero_either(nothing):  # case T2; the reference takes NaN for 0
    assert series(Constant(), [5, nothing]) == [5, 5]


def test_a_constant_series_is_forecast_as_itself():  # case T9
    assert series(Constant(), [7] * 20)[-1] == 7


def test_every_horizon_gets_the_same():
    constant = Constant()
    constant.observe(3)
    assert [constant.forecast(steps) for steps in (1, 2, 100)] == [3, 3, 3]


def test_the_past_has_no_forecast():
    with pytest.raises(ValueError, match="steps"):
        Constant().forecast(0)


def test_the_state_restores():
    constant, copy = Constant(), Constant()
    constant.observe(4.25)
    copy.load_state(json.loads(json.dumps(constant.to_state())))
    assert copy.forecast() == 4.25


def test_a_damaged_state_is_refused():
    with pytest.raises(StateError, match="constant"):
        Constant().load_state({"history": {"last": 1.0}})
