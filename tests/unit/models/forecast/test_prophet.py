"""Prophet: a window, refitted only when something has changed."""

import json

import pytest

from headrace.models.forecast.fitting import FitResult
from headrace.models.forecast.prophet import Prophet, ProphetFit
from headrace.schemas.errors import ConfigError, StateError

VALUES = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def fed(prophet: Prophet, values: list[float]) -> Prophet:
    prophet.inline = False
    for value in values:
        prophet.observe(value)
    return prophet


def path_of(at: int = 6, newest: float = 60.0) -> FitResult:
    """A fit of VALUES that was made elsewhere."""
    return FitResult("prophet", at, newest, {"path": [70.0, 80.0, 90.0, 1e9]})


def test_the_last_value_is_the_forecast_until_a_fit_comes():
    assert fed(Prophet(), VALUES).forecast() == 60.0


def test_a_fit_foretells_several_windows_and_serves_until_the_next():
    prophet = fed(Prophet(refit_every=3), VALUES)
    assert prophet.take_fit(path_of())
    assert [prophet.forecast(n) for n in (1, 2, 3)] == [70, 80, 90]
    prophet.observe(61.0)
    assert prophet.fit_jobs() == ()
    assert prophet.forecast() == 80.0


def test_beyond_its_path_the_forecast_stays_and_never_leaves_the_bound():
    prophet = fed(Prophet(), VALUES)
    prophet.take_fit(path_of())
    assert prophet.forecast(4) == prophet.forecast(400) == 180.0  # three times the largest value seen


def test_a_fit_is_due_only_when_something_has_changed():  # dynamo#11332: 52.6 s for 1,000 idle ticks
    prophet = fed(Prophet(window=10), VALUES)
    assert len(prophet.fit_jobs()) == 1
    prophet.take_fit(path_of())
    assert prophet.fit_jobs() == ()
    fits = 0
    for _ in range(1000):
        prophet.observe(0.0)
        for job in prophet.fit_jobs():
            fits += 1
            prophet.take_fit(FitResult("prophet", job.at, 0.0, {"path": [0.0]}))
    assert fits == 9  # as long as the window holds a value that is not 0
    assert prophet.forecast() == 0.0


def test_a_window_of_equal_values_needs_no_fit():  # case T9
    prophet = fed(Prophet(window=5), [3.0, *[7.0] * 5])
    assert prophet.fit_jobs() == ()
    assert prophet.forecast(9) == 7.0


def test_only_the_window_is_fitted_and_it_keeps_its_place_in_the_week():
    prophet = fed(Prophet(window=5, interval_s=3600.0), [float(n) for n in range(1, 181)])
    (job,) = prophet.fit_jobs()
    assert isinstance(job, ProphetFit)
    assert job.values == (176.0, 177.0, 178.0, 179.0, 180.0)
    assert job.start_s == (175 - 168) * 3600.0


@pytest.mark.parametrize("stale", [path_of(at=7), path_of(newest=61.0), FitResult("arima", 6, 60.0, None)])
def test_a_stale_fit_changes_nothing(stale):
    prophet = fed(Prophet(), VALUES)
    before = prophet.to_state()
    assert not prophet.take_fit(stale)
    assert prophet.to_state() == before


def test_after_a_fit_that_failed_the_last_value_is_the_forecast():
    prophet = fed(Prophet(), VALUES)
    assert prophet.take_fit(FitResult("prophet", 6, 60.0, None, "RuntimeError"))
    assert prophet.forecast() == 60.0
    assert prophet.fit_jobs() == ()


def test_what_the_library_cannot_fit_is_a_failure_and_no_error():
    result = ProphetFit(1, (1.0,), 0.0, 60.0, 5, 1.0).run()
    assert result.values is None
    assert result.failure


@pytest.mark.parametrize("damage", [{"values": "?"}, {"log1p": True}, {"path": None}, {"fitted_at": "x"}])
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    prophet = fed(Prophet(), VALUES)
    before = prophet.to_state()
    with pytest.raises(StateError, match="prophet"):
        prophet.load_state(json.loads(json.dumps(before)) | damage)
    assert prophet.to_state() == before


@pytest.mark.parametrize(
    ("bad", "named"),
    [({"window": 3}, "prophet_window_size"), ({"min_points": 1}, "min_points"), ({"interval_s": 0.0}, "interval_s")],
)
def test_an_option_out_of_range_is_refused(bad, named):
    with pytest.raises(ConfigError, match=named):
        Prophet(**bad)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("headrace.models.forecast.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install headrace\[prophet\]"):
        Prophet()
