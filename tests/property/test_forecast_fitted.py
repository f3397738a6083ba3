"""The battery for forecasters that fit: the same truths as test_forecast.py, with few tries, for each is a fit."""

import json
import math
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.models.forecast.base import MAX_GROWTH, Forecaster
from headrace.models.forecast.fitting import FitResult
from headrace.models.forecast.registry import make_forecaster
from headrace.schemas.errors import RecordError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

FITTED = {
    "arima": {"max_history": 64},
    "prophet": {"window": 20},
    "auto": {"members": ("smooth", "seasonal", "kalman", "arima", "prophet"), "window": 20},
}
VARIANTS = [
    pytest.param(name, options | {"log1p": log1p}, id=f"{name}-log1p" if log1p else name)
    for name, options in FITTED.items()
    for log1p in (False, True)
]
every = pytest.mark.parametrize(("name", "options"), VARIANTS)
few = settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow])
values = st.one_of(st.just(0.0), st.floats(0, 1e3), st.floats(0, 1e15))
series = st.lists(values, min_size=6, max_size=25)


def fed(name: str, options: dict, data: list[float]) -> Forecaster:
    """Fed without fits on the way; the first question makes those that are due."""
    forecaster = make_forecaster(name, **options)
    forecaster.inline = False
    for value in data:
        forecaster.observe(value)
    forecaster.inline = True
    return forecaster


@every
@few
@given(data=series, ahead=st.integers(1, 50))
def test_a_forecast_is_finite_not_negative_and_bounded_by_what_was_seen(name, options, data, ahead):
    found = fed(name, options, data).forecast(ahead)
    assert math.isfinite(found)
    assert 0 <= found <= MAX_GROWTH * max(data)


@every
@few
@given(data=series, later=series)
def test_a_restored_forecaster_goes_on_exactly(name, options, data, later):
    original, copy = fed(name, options, data), make_forecaster(name, **options)
    original.forecast()
    copy.load_state(json.loads(json.dumps(original.to_state())))
    original.inline = copy.inline = False
    for value in later:
        original.observe(value)
        copy.observe(value)
    original.inline = copy.inline = True
    assert [copy.forecast(n) for n in (1, 3)] == [original.forecast(n) for n in (1, 3)]
    assert copy.to_state() == original.to_state()


@every
@few
@given(data=series)
def test_a_fit_that_comes_back_as_json_is_the_fit_that_was_made_on_the_spot(name, options, data):
    spot, elsewhere = fed(name, options, data), fed(name, options, data)
    elsewhere.inline = False
    for job in elsewhere.fit_jobs():
        result = job.run()
        plain = {f: getattr(result, f) for f in FitResult.__slots__}
        elsewhere.take_fit(FitResult(**json.loads(json.dumps(plain))))
    assert elsewhere.forecast() == spot.forecast()


@every
@few
@given(data=st.lists(st.floats(0.5, 1e3), min_size=6, max_size=25))
def test_no_fit_is_due_again_until_something_has_changed(name, options, data):
    forecaster = fed(name, options, data)
    forecaster.forecast()
    assert forecaster.fit_jobs() == ()


@pytest.mark.parametrize("value", [1e-6, 7.0, 1e9])
@every
def test_a_constant_series_is_forecast_as_itself_and_needs_no_fit(name, options, value):  # case T9
    forecaster = fed(name, options, [value] * 20)
    assert forecaster.fit_jobs() == ()
    assert forecaster.forecast() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1e9])
@pytest.mark.parametrize("name", FITTED)
def test_a_forecast_scales_with_its_series(name, scale):  # sktime#2075
    data = [100 + 30 * math.sin(n / 3) + (n * 37 % 11) for n in range(40)]
    small, large = (fed(name, FITTED[name], [k * v for v in data]).forecast(2) for k in (1.0, scale))
    assert large == pytest.approx(scale * small, rel=0.02)


MOST_BYTES = {"arima": 4_000, "prophet": 4_000, "auto": 32_000}


@every
def test_the_state_does_not_grow_beyond_its_bound(name, options):
    forecaster = fed(name, options, [1e9 * abs(math.sin(n)) for n in range(2500)])
    forecaster.forecast()
    assert len(json.dumps(forecaster.to_state())) < MOST_BYTES[name]


numbers = st.floats() | st.integers(-3, 40) | st.floats(-2, 2)
orders = st.fixed_dictionaries(
    {"p": st.integers(-1, 20), "d": st.integers(-1, 4), "q": st.integers(-1, 20), "constant": st.booleans()},
    optional={"unit": numbers, "log_unit": st.none() | numbers},
)
answers = st.fixed_dictionaries(
    {}, optional={"order": orders | st.none(), "params": st.lists(numbers, max_size=6), "path": st.lists(numbers)}
)
SEEN = [100 + 30 * math.sin(n / 4) + n % 3 for n in range(30)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["arima", "prophet"])
@settings(max_examples=150)
@given(answer=answers, later=st.lists(st.floats(0, 1e6), max_size=5), ahead=st.integers(1, 30))
def test_whatever_a_fit_says_it_is_refused_or_gives_forecasts_like_any(kind, answer, later, ahead):
    forecaster = make_forecaster(kind)
    forecaster.inline = False
    for value in SEEN:
        forecaster.observe(value)
    with suppress(RecordError):
        forecaster.take_fit(FitResult(kind, len(SEEN), SEEN[-1], answer))
    for value in later:
        forecaster.observe(value)
    assert 0 <= forecaster.forecast(ahead) <= MAX_GROWTH * max(*SEEN, *later)
    assert "NaN" not in json.dumps(forecaster.to_state())
