"""The reference's forecasts. Golden numbers: reference-semantics 4.8."""

import math

import pytest

from headrace.models.reference.forecast import LoadForecast, clamp_accept
from headrace.models.reference.predictors import make_series
from headrace.models.reference.settings import Settings, Traffic
from headrace.schemas.errors import ConfigError

NAN = math.nan


def forecasts(values: list[float], **more) -> list[float]:
    series = make_series(Settings(**more))
    found = []
    for value in values:
        series.add(value)
        found.append(series.predict())
    return found


def test_a_constant_forecast_skips_leading_zeros_and_takes_nan_for_zero() -> None:
    assert forecasts([0, 0, 5, 0, NAN, 7], load_predictor="constant") == [0, 0, 5, 0, 0, 7]


def test_a_kalman_forecast_may_be_negative() -> None:
    found = forecasts([0, 0, 10, 12, 15, 0, 0, 0, 40, NAN], load_predictor="kalman")
    want = [0, 0, 10, 12.984585, 17.874297, -2.874599, -5.838502, -6.003956, 23.066622, 11.571985]
    assert found == pytest.approx(want, abs=1e-6)


def test_a_logarithmic_kalman_forecast_is_not_negative() -> None:
    found = forecasts([0, 0, 10, 12, 15, 0, 0, 0, 40, NAN], load_predictor="kalman", load_predictor_log1p=True)
    assert found == pytest.approx([0, 0, 10, 13.114305, 18.54303, 0, 0, 0, 3.600309, 0.712376], abs=1e-6)


def test_reading_a_forecast_changes_nothing() -> None:
    series = make_series(Settings(load_predictor="kalman"))
    for value in (100, 60, 20, 5):
        series.add(value)
    assert [series.predict() for _ in range(3)] == pytest.approx([-26.497116] * 3, abs=1e-6)


def test_arima_keeps_the_order_of_its_first_five_values() -> None:
    pytest.importorskip("pmdarima", reason="the extra arima is not installed")
    values = [0, 10, 10, 10, 10, 10, 10, 12, 14, 16, 18, 20]
    want = [0, 10, 10, 10, 10, 10, 10, 10.265671, 10.675782, 11.170774, 11.719221, 12.317266]
    assert forecasts(values, load_predictor="arima") == pytest.approx(want, rel=1e-3)


def test_prophet_continues_a_ramp() -> None:
    pytest.importorskip("prophet", reason="the extra prophet is not installed")
    values = [10, 20, 30, 40, 50, 60, 70, 80]
    want = [10, 20, 30, 40, 60, 70, 80, 90]
    assert forecasts(values, load_predictor="prophet") == pytest.approx(want, rel=1e-2)


def test_a_forecaster_that_the_reference_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="constant, arima"):
        make_series(Settings(load_predictor="auto"))


@pytest.mark.parametrize(
    ("accept", "nextn", "found"),
    [(2.0, 0, 1.0), (None, 3, 1.0), (NAN, 3, 1.0), (0.5, 3, 1.0), (2.5, 3, 2.5), (9.0, 3, 4.0)],
)
def test_accepted_tokens_are_between_one_and_what_was_guessed(accept, nextn, found) -> None:
    assert clamp_accept(accept, nextn) == found


def test_an_idle_window_is_fed_the_lengths_of_the_last_request() -> None:
    forecast = LoadForecast(Settings(load_predictor="constant"))
    forecast.observe(Traffic(60, 10, 1000, 200, kv_hit_rate=0.5))
    forecast.observe(Traffic(60, 0, 0, 0, kv_hit_rate=NAN))
    told = forecast.predict(0)
    assert (told.num_req, told.isl, told.osl, told.kv_hit_rate) == (0, 1000, 200, 0.5)


def test_after_a_warm_up_idle_windows_are_leading_ones_again() -> None:
    forecast = LoadForecast(Settings(load_predictor="constant"))
    forecast.warm_up([Traffic(60, 10, 1000, 200)])
    forecast.observe(Traffic(60, 0, 0, 0))
    assert forecast.predict(0).num_req == 10
