"""The battery that every forecaster passes, whatever the series; those that fit have their own, with fewer tries."""

import json
import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.models.forecast.base import MAX_GROWTH, Forecaster
from headrace.models.forecast.registry import FORECASTERS, make_forecaster

LIGHT = {"constant": {}, "kalman": {}, "seasonal": {}, "auto": {"members": ("smooth", "seasonal", "kalman")}}
ROUNDED = {"constant": 1e-6, "kalman": 1e-6, "seasonal": 1e-3, "auto": 1e-3}  # the last two remember 7 digits
VARIANTS = [
    pytest.param(name, options | {"log1p": log1p}, id=f"{name}-log1p" if log1p else name)
    for name, options in LIGHT.items()
    for log1p in ((False, True) if "log1p" in FORECASTERS[name].options else (False,))
]
every = pytest.mark.parametrize(("name", "options"), VARIANTS)
values = st.one_of(st.just(0.0), st.floats(0, 1e3), st.floats(0, 1e15))
series = st.lists(values, max_size=40)
steps = st.integers(1, 50)


def fed(name: str, options: dict[str, Any], data: list[float]) -> Forecaster:
    forecaster = make_forecaster(name, **options)
    for value in data:
        forecaster.observe(value)
    return forecaster


@every
@given(data=series, ahead=steps)
def test_a_forecast_is_finite_not_negative_and_bounded_by_what_was_seen(name, options, data, ahead):
    found = fed(name, options, data).forecast(ahead)
    if not data:
        assert found is None
        return
    assert math.isfinite(found)
    assert 0 <= found <= MAX_GROWTH * max(data)


@every
@given(data=series, ahead=steps)
def test_the_same_series_gives_the_same_forecast(name, options, data, ahead):
    assert fed(name, options, data).forecast(ahead) == fed(name, options, data).forecast(ahead)


@every
@given(data=series, later=series, ahead=steps)
def test_a_restored_forecaster_goes_on_exactly(name, options, data, later, ahead):
    original, copy = fed(name, options, data), make_forecaster(name, **options)
    copy.load_state(json.loads(json.dumps(original.to_state())))
    for value in later:
        original.observe(value)
        copy.observe(value)
    assert copy.forecast(ahead) == original.forecast(ahead)
    assert copy.to_state() == original.to_state()


@every
@given(
    data=series,
    nothing=st.lists(st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 1e300]), max_size=5),
    at=st.integers(0),
)
def test_what_is_no_value_leaves_no_trace(name, options, data, nothing, at):
    at = min(at, len(data))
    spoiled = data[:at] + nothing + data[at:]
    assert fed(name, options, spoiled).forecast() == fed(name, options, data).forecast()


@every
@given(data=series, idle=st.integers(1, 30))
def test_leading_idle_changes_nothing(name, options, data, idle):
    assume(any(data))
    assert fed(name, options, [0.0] * idle + data).forecast() == fed(name, options, data).forecast()


@every
@given(value=st.floats(1e-6, 1e9), length=st.integers(1, 100))
def test_a_constant_series_is_forecast_as_itself_at_every_scale(name, options, value, length):
    assert fed(name, options, [value] * length).forecast() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", LIGHT)
@given(
    data=st.lists(st.just(0.0) | st.floats(1e-3, 1e3), min_size=1, max_size=40),
    scale=st.sampled_from([1e-6, 1e-3, 1e3, 1e6]),
)
def test_a_forecast_scales_with_its_series(name, data, scale):
    found = fed(name, LIGHT[name], [v * scale for v in data]).forecast()
    assert found == pytest.approx(
        scale * fed(name, LIGHT[name], data).forecast(), rel=ROUNDED[name], abs=1e-9 * scale * max(data)
    )


MOST_BYTES = {"constant": 1_000, "kalman": 1_000, "seasonal": 16_000, "auto": 24_000}


@every
def test_the_state_does_not_grow_beyond_its_bound(name, options):
    forecaster = fed(name, options, [1e9 * abs(math.sin(n)) for n in range(3000)])
    assert len(json.dumps(forecaster.to_state())) < MOST_BYTES[name]
