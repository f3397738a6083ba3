"""The three series of load: what they carry over a change of configuration, and which fits they take."""

import math

import msgspec
import pytest
from world import DGD

from headrace.models.forecast.fitting import FitJob
from headrace.schemas.config import planner_config
from headrace.schemas.errors import RecordError
from headrace.schemas.forecast_fit import ForecastFit
from headrace.streams.agents.load_series import PAST, LoadSeries


def series(predictor: str = "constant", *, inline: bool = False, interval_s: float = 60.0, **config) -> LoadSeries:
    raw = {
        "optimization_target": "sla",
        "load_predictor": predictor,
        "throughput_adjustment_interval_seconds": interval_s,
    }
    return LoadSeries(planner_config(raw | config), inline=inline)


def wave(n: int) -> float:
    return 100 + 30 * math.sin(n / 4) + n % 3


def seen(made: LoadSeries, count: int = 40, first: int = 0) -> LoadSeries:
    for n in range(first, first + count):
        made.observe("rate", wave(n))
    return made


def carried(made: LoadSeries, **to) -> LoadSeries:
    """As under another configuration, by way of JSON."""
    other = series(**to)
    other.load_state(msgspec.json.decode(msgspec.json.encode(made.to_state())))
    return other


# -- another configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("predictor", ["constant", "kalman", "arima", "seasonal", "auto"])
def test_another_interval_keeps_the_history_as_rates(predictor):
    before = series(predictor)
    for n in range(90):
        before.observe("rate", 50.0 if n < 60 else 80.0)
    longer = carried(before, predictor=predictor, interval_s=180.0)
    shorter = carried(before, predictor=predictor, interval_s=20.0)
    assert longer.forecast("rate") == pytest.approx(80.0, rel=0.1)
    assert shorter.forecast("rate") == pytest.approx(80.0, rel=0.1)
    assert list(longer.past["rate"].values) == [50.0] * 20 + [80.0] * 10
    assert list(shorter.past["rate"].values) == [50.0] * 180 + [80.0] * 90


def test_a_season_is_known_again_after_another_interval():
    before = series("seasonal", interval_s=600.0)
    for n in range(450):
        before.observe("rate", 100.0 + 50.0 * (n % 48 in (20, 21, 22, 23)))
    after = carried(before, predictor="seasonal", interval_s=1200.0)
    assert after.forecasters["rate"].period == 24


def test_the_past_has_a_bound():
    made = seen(series(), PAST + 100)
    assert len(made.past["rate"].values) == PAST
    assert len(carried(made, interval_s=1.0).past["rate"].values) == PAST


def test_what_the_same_forecaster_can_read_is_taken_over_exactly():
    before = seen(series("kalman"))
    after = carried(before, predictor="kalman", kalman_r=7.0)
    assert after.forecasters["rate"].to_state() == before.forecasters["rate"].to_state()


def test_a_state_of_other_members_is_learned_anew(monkeypatch):
    before = seen(series("auto"))
    monkeypatch.setattr("headrace.models.forecast.extras.find_spec", lambda name: None)
    after = carried(before, predictor="auto")
    assert "kalman" not in after.forecasters["rate"].shares()
    assert after.forecast("rate") == pytest.approx(wave(39), rel=0.3)


def test_zeros_stay_what_they_were_idle_before_the_first_request_and_load_after_it():
    made = series()
    for value in (0.0, 0.0, 5.0, 0.0):
        made.observe("rate", value)
    after = carried(made, predictor="kalman")
    assert list(after.past["rate"].values) == [5.0, 0.0]
    after.observe("rate", 0.0)
    assert len(after.past["rate"].values) == 3


def test_the_state_is_that_of_now_whatever_was_asked_before():
    made = seen(series("arima"))
    for change in (
        lambda: made.observe("rate", 1.0),
        lambda: made.take_fit(record(made)),
        lambda: made.warm_up("trace", {"rate": [1.0, 2.0]}),
        lambda: made.set_inline(True),
        lambda: made.forecast("rate"),  # makes the fit that is due
    ):
        made.to_state()
        change()
        made_anew = {name: made.forecasters[name].to_state() for name in ("rate", "isl", "osl")}
        assert {name: made.to_state()[name] for name in made_anew} == made_anew
        assert made.to_state()["inline"] == made.inline


# -- warm-up -----------------------------------------------------------------------------------------------------------


def test_a_warm_up_is_remembered_and_ends_with_leading_idle():
    made = series("kalman")
    assert made.empty
    made.warm_up("trace.jsonl", {"rate": [1.0, 2.0, 0.0, 4.0], "isl": [7.0], "osl": []})
    assert not made.empty
    made.observe("rate", 0.0)
    assert (made.forecast("rate"), made.forecast("isl"), made.forecast("osl")) == (4.0, 7.0, None)
    after = carried(made, predictor="constant")
    assert (after.warmed_by, after.forecast("rate")) == ("trace.jsonl", 4.0)
    after.observe("rate", 0.0)
    assert after.forecast("rate") == 4.0  # still idle
    after.observe("rate", 3.0)
    after.observe("rate", 0.0)
    assert after.forecast("rate") == 0.0


# -- fits --------------------------------------------------------------------------------------------------------------


def job(made: LoadSeries) -> FitJob:
    ((name, due),) = made.fit_jobs()
    assert name == "rate"
    return due


def record(made: LoadSeries, **changes) -> ForecastFit:
    """The fit that is due, made."""
    result = job(made).run()
    fit = ForecastFit(
        dgd=DGD, fit_id="f", series="rate", kind=result.kind, options=made.options, at=result.at, newest=result.newest,
        values=result.values, made_at=1.0,
    )  # fmt: skip
    return msgspec.convert(msgspec.to_builtins(fit) | changes, ForecastFit)


def counts(made: LoadSeries) -> tuple[int, int, int]:
    return made.fits["used"], made.fits["unused"], made.fits["failed"]


def test_fits_are_left_to_others_until_they_come_back():
    made, inline = seen(series("arima")), seen(series("arima", inline=True))
    assert made.forecast("rate") == pytest.approx(wave(39))
    assert made.take_fit(record(made)) is None
    assert made.forecast("rate", 3) == inline.forecast("rate", 3) != wave(39)
    assert (made.fit_jobs(), counts(made)) == ([], (1, 0, 0))


def test_a_repeated_fit_changes_nothing_and_is_counted():
    made = seen(series("arima"))
    fit = record(made)
    made.take_fit(fit)
    before = made.to_state()["rate"]
    assert made.take_fit(fit) is None
    assert (made.to_state()["rate"], counts(made)) == (before, (1, 1, 0))


@pytest.mark.parametrize(
    "changes",
    [
        {"series": "osl"},
        {"series": "wishes"},
        {"kind": "prophet"},
        {"kind": "oracle"},
        {"at": 41},
        {"at": 0},
        {"newest": 5.0},
        {"options": "arima, 180 s"},
    ],
    ids=str,
)
def test_a_fit_of_something_else_changes_nothing_and_is_counted(changes):
    made = seen(series("arima"))
    fit = record(made, **changes)
    before = made.to_state()["rate"]
    assert made.take_fit(fit) is None
    assert (made.to_state()["rate"], counts(made)) == (before, (0, 1, 0))


def test_a_fit_that_comes_late_is_used_as_long_as_its_values_are_known():
    made = seen(series("arima"))
    fit = record(made)
    seen(made, 5, first=40)
    made.take_fit(fit)
    assert counts(made) == (1, 0, 0)
    late = record(made)
    seen(made, 256, first=45)
    made.take_fit(late)
    assert counts(made) == (1, 1, 0)


def test_a_fit_that_failed_is_said_and_asked_for_again_when_there_is_something_new():
    made = seen(series("arima"))
    said = made.take_fit(record(made, values=None, failure="no convergence"))
    assert said == "the fit of arima to rate failed, and the one before it stays: no convergence"
    assert (made.fit_jobs(), counts(made)) == ([], (0, 0, 1))
    assert [len(seen(made, 1, first=n).fit_jobs()) for n in range(40, 45)] == [0, 0, 0, 0, 1]


ORDER = {"p": 1, "d": 0, "q": 0, "constant": False, "log_unit": None, "unit": 1.0}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"order": None, "params": []},
        {"order": ORDER, "params": "text"},
        {"order": ORDER, "params": [0.5]},
        {"order": ORDER, "params": [0.5, 1.0, 2.0]},
        {"order": ORDER, "params": [1e300, 1.0]},
        {"order": ORDER | {"p": 100_000}, "params": [0.5, 1.0]},
        {"order": ORDER | {"p": -1}, "params": [0.5, 1.0]},
        {"order": ORDER | {"d": 50}, "params": [0.5, 1.0]},
        {"order": ORDER | {"p": 1.5}, "params": [0.5, 1.0]},
        {"order": ORDER | {"unit": 0.0}, "params": [0.5, 1.0]},
        {"order": ORDER | {"log_unit": -1.0}, "params": [0.5, 1.0]},
        {"path": [1.0] * 50},
    ],
    ids=str,
)
def test_values_that_no_fit_gives_are_refused_and_change_nothing(values):
    made = seen(series("arima"))
    fit = record(made, values=values)
    before = made.to_state()["rate"]
    with pytest.raises(RecordError, match="fit of arima") as refused:
        made.take_fit(fit)
    assert refused.value.reason == "invalid"
    assert (made.to_state()["rate"], counts(made)) == (before, (0, 0, 0))


@pytest.mark.parametrize("path", [[], ["a"], [1.0] * 20_000, 7, [math.nan] * 50], ids=lambda p: str(p)[:20])
def test_a_path_that_no_fit_gives_is_refused(path):
    made = seen(series("prophet"))
    due = job(made)
    fit = ForecastFit(
        dgd=DGD, fit_id="f", series="rate", kind="prophet", options=made.options, at=due.at, newest=due.newest,
        values={"path": path}, made_at=1.0,
    )  # fmt: skip
    with pytest.raises(RecordError, match="fit of prophet"):
        made.take_fit(fit)
    assert len(made.fit_jobs()) == 1


@pytest.mark.parametrize("phi", [1.0, -1.5, 40.0])
def test_an_explosive_fit_is_not_followed(phi):
    made = seen(series("arima"))
    made.take_fit(record(made))
    good = made.forecast("rate")
    seen(made, 1, first=40)
    made.take_fit(record(made, values={"order": ORDER, "params": [phi, 1.0]}))
    seen(made, 30, first=41)
    assert 0 < made.forecast("rate", 20) < 3 * good
