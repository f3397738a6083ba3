"""ARIMA: orders selected anew, exact forecasts between fits, fits as values."""

import json
import math
import pickle

import numpy as np
import pytest

from headrace.models.forecast.arima import Arima
from headrace.models.forecast.arima_fit import ArimaFit, Order
from headrace.models.forecast.arma import Arma, Parameters, differenced, summed
from headrace.models.forecast.base import warm_up
from headrace.models.forecast.fitting import FitResult
from headrace.schemas.errors import ConfigError, StateError

RAMP = [10.0, *(10.0,) * 5, 12.0, 14.0, 16.0, 18.0, 20.0]


def fed(arima: Arima, values: list[float]) -> Arima:
    arima.inline = False
    for value in values:
        arima.observe(value)
    return arima


def fixed(**order: float) -> FitResult:
    """A fit of RAMP that was made elsewhere: (0, 1, 0) with a drift of 2."""
    plain = {"p": 0, "d": 1, "q": 0, "constant": True, "log_unit": None, "unit": 1.0} | order
    return FitResult("arima", len(RAMP), RAMP[-1], {"order": plain, "params": [2.0, 1.0]})


def test_a_ramp_is_followed_where_the_reference_kept_the_order_of_five_equal_values():  # reference weak spot 33
    ours, reference = Arima(), Arima(reselect=False, normalise=False)
    for value in RAMP:
        for arima in (ours, reference):
            arima.observe(value)
            arima.forecast()
    assert reference.forecast() == pytest.approx(12.317266, rel=1e-3)
    assert ours.forecast() > 19


def test_nineteen_equal_values_and_another_are_forecast_as_about_their_mean():  # case T9
    arima = fed(Arima(), [1.0] * 19 + [1.1])
    arima.inline = True
    assert 0.99 < arima.forecast() < 1.1


def test_an_order_is_selected_at_the_stated_times():
    arima, selections = fed(Arima(max_history=16, growth=1.5), []), []
    for n in range(1, 60):
        arima.observe(100.0 + n % 7)
        for job in arima.fit_jobs():
            assert isinstance(job, ArimaFit)
            if job.order is None:
                selections.append(n)
            order = {"p": 0, "d": 0, "q": 0, "constant": True, "log_unit": None, "unit": 1.0}
            arima.take_fit(FitResult("arima", job.at, job.values[-1], {"order": order, "params": [103.0, 1.0]}))
    assert selections == [5, 8, 12, 18, 27, 41, 57]  # half as many again, then 16 later


def test_parameters_go_on_from_the_last_ones():
    arima = fed(Arima(), RAMP)
    arima.take_fit(fixed())
    arima.observe(22.0)
    (job,) = arima.fit_jobs()
    assert (job.order, job.params, job.new) == (Order(0, 1, 0, True), (2.0, 1.0), 1)


def test_nothing_is_fitted_twice_and_nothing_without_a_change():  # dynamo#11332
    arima = fed(Arima(), RAMP)
    assert len(arima.fit_jobs()) == 1
    arima.take_fit(fixed())
    assert arima.fit_jobs() == ()
    assert fed(Arima(), [3.0] * 50).fit_jobs() == ()


def test_a_forecast_between_fits_starts_from_the_newest_value():
    arima = fed(Arima(), RAMP)
    arima.take_fit(fixed())
    assert [arima.forecast(n) for n in (1, 3)] == pytest.approx([22.0, 26.0])
    arima.observe(30.0)
    assert [arima.forecast(n) for n in (1, 3)] == pytest.approx([32.0, 36.0])


def test_until_its_first_fit_comes_the_last_value_is_the_forecast():
    assert fed(Arima(), RAMP).forecast() == 20.0


@pytest.mark.parametrize(
    "stale",
    [
        {"at": 11, "newest": 99.0},  # of another series
        {"at": 12},  # of values that have not come
        {"at": 2, "newest": 10.0, "first": True},  # older than the one in use
        {"kind": "prophet"},
    ],
)
def test_a_stale_fit_changes_nothing(stale):
    arima = fed(Arima(), RAMP)
    if stale.pop("first", False):
        arima.take_fit(fixed())
    result = fixed()
    fields = {name: getattr(result, name) for name in FitResult.__slots__}
    before = arima.to_state()
    assert not arima.take_fit(FitResult(**(fields | stale)))
    assert arima.to_state() == before


def test_a_fit_that_failed_leaves_the_one_in_use():
    arima = fed(Arima(), RAMP)
    arima.take_fit(fixed())
    arima.observe(22.0)
    assert arima.take_fit(FitResult("arima", 12, 22.0, None, "LinAlgError"))
    assert arima.forecast() == pytest.approx(24.0)
    assert arima.fit_jobs() == ()


def test_what_the_library_cannot_fit_is_a_failure_and_no_error():
    result = ArimaFit(3, (1.0, 2.0, 4.0), False, False, Order(5, 2, 5, True), (1.0,)).run()
    assert result.values is None
    assert result.failure


def test_a_job_says_the_same_after_a_journey():
    (job,) = fed(Arima(), [100 + 30 * math.sin(n) for n in range(30)]).fit_jobs()
    assert pickle.loads(pickle.dumps(job)).run() == job.run()


def test_raw_values_without_memory_are_fitted_on_the_logarithm():  # dynamo#5545
    spikes = [5.0, 5, 400, 5, 6, 5, 5, 300, 5, 5, 6, 5]
    arima = fed(Arima(), spikes)
    arima.inline = True
    arima.forecast()
    assert arima.order.p == arima.order.q == 0
    assert arima.order.log_unit is not None
    assert arima.forecast() < sum(spikes) / len(spikes) / 2  # not dragged up by two spikes


def test_a_warm_up_is_fitted_once_at_its_end_and_zeros_after_it_teach_nothing():
    arima = Arima(reselect=False)
    warm_up(arima, [100 + 30 * math.sin(n) for n in range(30)])
    before = arima.forecast()
    arima.observe(0.0)
    assert arima.forecast() == before
    arima.observe(90.0)
    arima.observe(0.0)
    assert arima.to_state()["history"]["points"] == 32


def test_the_filter_agrees_with_a_simulated_process():
    """Forecast errors of an ARMA(2,1) that is known have the variance of its noise, and no correlation."""
    rng = np.random.default_rng(7)
    noise = rng.normal(size=4000)
    series = np.zeros(4000)
    for t in range(2, 4000):
        series[t] = 1.0 + 0.5 * series[t - 1] - 0.3 * series[t - 2] + noise[t] + 0.4 * noise[t - 1]
    arma = Arma(Parameters(0, (0.5, -0.3), (0.4,), 1.0))
    errors = []
    for value in series:
        errors.append(value - arma.forecast(1)[0])
        arma.observe(value)
    late = np.array(errors[100:])
    assert np.abs(late - noise[100:]).max() < 1e-6
    assert arma.forecast(500)[-1] == pytest.approx(1.0 / (1 - 0.5 + 0.3), rel=1e-6)


@pytest.mark.parametrize("d", [0, 1, 2])
def test_sums_undo_differences(d):
    series = [3.0, 5.0, 4.0, 8.0, 1.0, 7.0]
    path = [float(v) for v in differenced(series, d)[4 - d :]]
    assert summed(path, series[4 - d : 4], d) == pytest.approx(series[4:])


def test_an_autoregression_with_a_unit_root_is_not_taken():
    arima = fed(Arima(), RAMP)
    arima.take_fit(fixed())
    root = FitResult("arima", 12, 22.0, fixed(p=1, d=0).values | {"params": [0.0, 1.0, 1.0]})
    arima.observe(22.0)
    assert arima.take_fit(root)
    assert arima.order == Order(0, 1, 0, True)
    assert arima.forecast() == pytest.approx(24.0)


@pytest.mark.parametrize(
    "damage", [{"values": "?"}, {"log1p": True}, {"order": {"p": 1}}, {"state": ""}, {"fitted_at": None}]
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    arima = fed(Arima(), RAMP)
    arima.take_fit(fixed())
    before = arima.to_state()
    with pytest.raises(StateError, match="arima"):
        arima.load_state(json.loads(json.dumps(before)) | damage)
    assert arima.to_state() == before


@pytest.mark.parametrize("bad", [{"min_points": 4}, {"max_history": 4}, {"growth": 1.0}, {"update_every": 0}])
def test_an_option_out_of_range_is_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Arima(**bad)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("headrace.models.forecast.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install headrace\[arima\]"):
        Arima()
