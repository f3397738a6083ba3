"""Jobs of a planner out, results in as records."""

from typing import Any

import pytest
from fits_at_once import FitsAtOnce
from world import DGD, window

from headrace.schemas.config import planner_config
from headrace.schemas.config_revision import ConfigRevision
from headrace.streams.planner import Planner
from headrace.streams.runtime.fit_desk import FitDesk, fit_desk

CONFIG: dict[str, Any] = {
    "optimization_target": "sla",
    "load_predictor": "arima",
    "throughput_adjustment_interval_seconds": 60,
}


@pytest.fixture
def planner() -> Planner:
    made = Planner(planner_config(CONFIG), DGD)
    made.begin_epoch()
    made.forecasts.set_inline(False)
    return made


@pytest.fixture
def fits() -> FitsAtOnce:
    return FitsAtOnce()


def interval(planner: Planner, n: int) -> None:
    """A minute of traffic whose rate is never twice the same, and the tick after it."""
    planner.handle(window(60.0 * n, 60.0 * (n + 1), 600 + 60 * (n % 3) + n), 60.0 * (n + 1))
    planner.tick(60.0 * (n + 1))


def after(planner: Planner, intervals: int) -> float:
    for n in range(intervals):
        interval(planner, n)
    return 60.0 * intervals


def test_nothing_is_asked_for_while_nothing_is_due(planner, fits):
    assert FitDesk(DGD, fits).exchange(planner, after(planner, 4)) == []
    assert fits.jobs == []


def test_a_fit_comes_back_as_a_record_that_the_planner_takes(planner, fits):
    desk = FitDesk(DGD, fits)
    now = after(planner, 6)
    assert desk.exchange(planner, now) == []
    (fit,) = desk.exchange(planner, now)
    assert (fit.dgd, fit.series, fit.kind, fit.at, fit.options) == (DGD, "rate", "arima", 6, planner.forecasts.options)
    planner.handle(fit, now)
    assert planner.forecasts.fits == {"used": 1, "unused": 0, "failed": 0}
    assert desk.exchange(planner, now) == []
    assert fits.jobs == [("rate", "arima", 6)]


def test_a_fit_is_not_made_again_while_it_is_on_its_way_back(planner, fits):
    desk = FitDesk(DGD, fits)
    now = after(planner, 6)
    for _ in range(4):
        desk.exchange(planner, now)
    assert fits.jobs == [("rate", "arima", 6)]
    interval(planner, 6)
    desk.exchange(planner, now + 60)
    assert fits.jobs == [("rate", "arima", 6), ("rate", "arima", 7)]


def test_what_was_asked_for_under_other_options_is_forgotten(planner, fits):
    desk = FitDesk(DGD, fits)
    now = after(planner, 6)
    desk.exchange(planner, now)
    planner.handle(ConfigRevision(dgd=DGD, revision=1, at=now, config=CONFIG | {"load_predictor_log1p": True}), now)
    assert desk.exchange(planner, now) == []
    (fit,) = desk.exchange(planner, now)
    assert fit.options.endswith("log1p")
    planner.handle(fit, now)
    assert planner.forecasts.fits["used"] == 1


def test_a_revision_that_leaves_forecasts_alone_forgets_nothing(planner, fits):
    desk = FitDesk(DGD, fits)
    now = after(planner, 6)
    desk.exchange(planner, now)
    planner.handle(ConfigRevision(dgd=DGD, revision=1, at=now, config=CONFIG | {"ttft_ms": 90}), now)
    assert len(desk.exchange(planner, now)) == 1


def test_what_a_closed_desk_had_asked_for_is_gone(planner, fits):
    now = after(planner, 6)
    with fit_desk(DGD, fits) as desk:
        desk.exchange(planner, now)
    assert fits.finished(DGD) == []
