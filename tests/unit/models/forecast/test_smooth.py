"""Exponential smoothing."""

import json

import pytest

from headrace.models.forecast.smooth import Smooth
from headrace.schemas.errors import ConfigError, StateError


def fed(values: list[float], **options) -> Smooth:
    smooth = Smooth(**options)
    for value in values:
        smooth.observe(value)
    return smooth


def test_the_mean_forgets():
    assert fed([8.0, 0.0, 0.0], weight=0.5).forecast(7) == 2.0


def test_on_the_logarithm_a_spike_counts_less():
    assert fed([3.0, 3.0, 1000.0], weight=0.5, log1p=True).forecast() == pytest.approx((4 * 1001) ** 0.5 - 1)


@pytest.mark.parametrize("weight", [0.0, 1.1, float("nan")])
def test_a_weight_out_of_range_is_refused(weight):
    with pytest.raises(ConfigError, match="smooth_weight"):
        Smooth(weight=weight)


@pytest.mark.parametrize("damage", [{"level": None}, {"log1p": True}, {"history": 3}])
def test_a_damaged_state_is_refused(damage):
    smooth = fed([1.0, 2.0])
    with pytest.raises(StateError, match="smooth"):
        smooth.load_state(json.loads(json.dumps(smooth.to_state())) | damage)
