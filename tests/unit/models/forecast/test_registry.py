"""Forecasters by name."""

import doctest
from importlib import import_module

import pytest

from headrace.models.forecast.registry import FORECASTERS, make_forecaster
from headrace.schemas.errors import ConfigError

EVERY_OPTION = {"q_level": 1.0, "q_trend": 0.1, "r": 10.0, "min_points": 5, "log1p": False, "window": 50}


@pytest.mark.parametrize("name", FORECASTERS)
def test_one_configuration_serves_every_forecaster(name):
    forecaster = make_forecaster(name, **EVERY_OPTION)
    forecaster.observe(3.0)
    assert forecaster.forecast() == 3.0


def test_an_option_reaches_its_forecaster():
    kalman = make_forecaster("kalman", min_points=2)
    for value in (10.0, 12.0):
        kalman.observe(value)
    assert kalman.forecast() == pytest.approx(12.984585)


def test_an_unknown_name_is_refused_with_the_known_ones():  # reference weak spot 36
    with pytest.raises(
        ConfigError, match=r"'oracle' is unknown: use constant, kalman \(pip install headrace\[kalman\]\)"
    ):
        make_forecaster("oracle")


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'size' is unknown: the options are growth, interval_s, log1p"):
        make_forecaster("constant", size=3)


@pytest.mark.parametrize("name", FORECASTERS)
def test_the_example_of_every_forecaster_holds(name):
    result = doctest.testmod(import_module(FORECASTERS[name].module))
    assert result.attempted > 0
    assert result.failed == 0
