"""Forecasts of our own and of others."""

import msgspec
import pytest
from world import DGD, prediction

from headrace.models.known import Known, Unknown
from headrace.schemas.config import planner_config
from headrace.schemas.errors import ConfigError
from headrace.schemas.prediction import Prediction
from headrace.streams.agents.forecast import MAX_OUTSIDE, MOST_LOOKED_AT, ForecastAgent
from headrace.streams.agents.load_series import LoadSeries
from headrace.streams.agents.traffic import Observation, TrafficObserver

CONSTANT = {"optimization_target": "sla", "load_predictor": "constant"}


def agent(**config) -> ForecastAgent:
    return ForecastAgent(planner_config(CONSTANT | config))


def own(made: ForecastAgent, observed, now: float = 180.0) -> Prediction:
    if isinstance(observed, Known):
        made.observe(observed.value)
    return made.predict(DGD, now, observed, TrafficObserver(30.0))


def seen(requests: int, isl: float | None = 1000.0, osl: float | None = 200.0) -> Known[Observation]:
    return Known(Observation(requests, 180.0, isl if requests else None, osl if requests else None))


def said(p: Prediction | None) -> tuple:
    assert p is not None
    return (p.requests_per_s, p.isl, p.osl)


def test_the_rate_is_forecast_per_second():
    assert said(own(agent(), seen(360))) == (2.0, 1000.0, 200.0)


def test_idleness_is_a_forecast_of_zero_and_keeps_the_lengths():  # case T1
    made = agent()
    own(made, seen(360, isl=3000.0))
    assert said(own(made, seen(0))) == (0.0, 3000.0, 200.0)


def test_an_unknown_interval_adds_no_sample_and_predicts_nothing():  # case T2
    made = agent()
    own(made, seen(360))
    before = made.to_state()
    p = own(made, Unknown("the scrape failed"))
    assert (said(p), p.reason) == ((None, None, None), "no_traffic_data")
    assert made.to_state() == before
    assert said(own(made, seen(180))) == (1.0, 1000.0, 200.0)


def test_an_outside_prediction_of_a_smaller_priority_speaks_first():
    made = agent()
    mine = own(made, seen(360))
    made.handle(prediction(9.0, 170.0, isl=500.0, osl=50.0), 170.0)
    best = made.best(mine, 180.0)
    assert (said(best), best.source) == ((9.0, 500.0, 50.0), "oracle")


def test_an_outside_prediction_of_a_larger_priority_waits_behind_our_own():
    made = agent()
    made.handle(prediction(9.0, 170.0, priority=101), 170.0)
    assert made.best(own(made, seen(360)), 180.0).requests_per_s == 2.0


def test_where_one_has_no_opinion_the_next_ones_counts():  # reference-semantics 8.1
    made = agent()
    made.handle(prediction(9.0, 170.0, isl=None, osl=None), 170.0)
    assert said(made.best(own(made, seen(360)), 180.0)) == (9.0, 1000.0, 200.0)


def test_an_outside_prediction_stands_in_while_traffic_is_unknown():
    made = agent()
    made.handle(prediction(9.0, 170.0), 170.0)
    assert said(made.best(own(made, Unknown("down")), 180.0)) == (9.0, 1000.0, 200.0)


def test_nobody_with_a_rate_is_no_prediction():
    made = agent()
    made.handle(prediction(None, 170.0), 170.0)
    assert made.best(own(made, Unknown("down")), 180.0) is None


def test_an_expired_prediction_is_not_used():
    made = agent()
    assert "had expired" in made.handle(prediction(9.0, 10.0, expires_at=170.0), 170.0)
    made.handle(prediction(9.0, 10.0, expires_at=180.0), 170.0)
    assert made.best(own(made, seen(360)), 180.0).requests_per_s == 2.0


def test_the_last_one_made_counts_in_whatever_order_they_come():
    made = agent()
    for at in (100.0, 170.0, 130.0, 170.0):
        made.handle(prediction(at, at), 175.0)
    assert made.best(own(made, seen(360)), 180.0).requests_per_s == 170.0


def test_a_clock_ahead_does_not_silence_the_next_prediction():
    made = agent()
    made.handle(prediction(1.0, 170.0, source="a", expires_at=1e9), 100.0)
    made.handle(msgspec.structs.replace(prediction(5.0, 1e8, source="a"), expires_at=1e9), 120.0)
    made.handle(prediction(7.0, 130.0, source="a"), 130.0)
    assert made.best(own(made, seen(360)), 180.0).requests_per_s == 7.0


def test_our_own_echo_is_not_heard():
    made = agent()
    assert made.handle(prediction(9.0, 170.0, source="headrace.kalman"), 170.0) is None
    assert made.outside == {}


def test_sources_beyond_the_limit_are_refused_until_others_end():
    made = agent()
    for i in range(MAX_OUTSIDE):
        assert made.handle(prediction(1.0, 0.0, source=f"s{i}", expires_at=100.0), 0.0) is None
    assert "more than 64" in made.handle(prediction(1.0, 0.0, source="late"), 50.0)
    assert made.handle(prediction(1.0, 0.0, source="late"), 100.0) is None
    assert set(made.outside) == {"late"}


def test_quantiles_and_long_reasons_are_not_kept():
    made = agent()
    made.handle(prediction(1.0, 0.0, quantiles={str(i): 1.0 for i in range(1000)}, reason="x" * 10_000), 0.0)
    assert len(msgspec.json.encode(made.to_state())) < 2000


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"load_predictor": "kalman"}, {"load_predictor": "constant"}),
        ({"load_predictor": "kalman"}, {"load_predictor": "kalman", "load_predictor_log1p": True}),
    ],
)
def test_another_predictor_learns_from_what_the_one_before_had_seen(before, after):
    old, new, taught = agent(**before), agent(**after), agent(**after)
    for requests in (180, 360, 540, 720, 900, 1080, 1260, 1440):
        own(old, seen(requests))
        own(taught, seen(requests))
    new.load_state(old.to_state())
    assert new.series.forecast("rate", 3) == taught.series.forecast("rate", 3)
    assert new.last_lengths == (1000.0, 200.0)


def test_an_unknown_predictor_is_refused_whether_it_is_needed_or_not():
    for target in ("sla", "throughput"):
        with pytest.raises(ConfigError, match="load_predictor 'arma' is unknown"):
            agent(load_predictor="arma", optimization_target=target)


def test_without_a_throughput_loop_no_predictor_is_made():
    idle = agent(load_predictor="kalman", optimization_target="throughput")
    assert {type(made).__name__ for made in idle.series.forecasters.values()} == {"Constant"}


def test_the_horizon_covers_the_start_up_that_was_measured():
    made = agent()
    assert own(made, seen(360)).horizon_s == 180.0
    made.startup.seconds = 400.0
    assert own(made, seen(360)).horizon_s == 540.0


def rising(**config) -> ForecastAgent:
    made = agent(load_predictor="kalman", **config)
    for requests in range(1800, 3600, 180):
        own(made, seen(requests))
    return made


def test_a_rising_load_is_foretold_for_the_end_of_the_horizon():
    made = rising()
    near, far = made.series.forecast("rate", 1), made.series.forecast("rate", 3)
    made.startup.seconds = 400.0
    assert near < far == made.predict(DGD, 2000.0, seen(3600), TrafficObserver(30.0)).requests_per_s


def test_a_falling_load_is_foretold_for_its_beginning():  # what is needed until then must not go
    made = agent(load_predictor="kalman")
    for requests in range(3600, 1800, -180):
        own(made, seen(requests))
    made.startup.seconds = 400.0
    foretold = made.predict(DGD, 2000.0, seen(1800), TrafficObserver(30.0)).requests_per_s
    assert foretold == made.series.forecast("rate", 1) > made.series.forecast("rate", 3)


def test_of_a_long_horizon_some_intervals_are_looked_at_the_first_and_the_last_too(monkeypatch):
    made, asked = rising(), []
    monkeypatch.setattr(LoadSeries, "forecast", lambda self, name, steps=1: asked.append(steps) or 1.0)
    made.startup.seconds = 180.0 * 100
    made.predict(DGD, 2000.0, seen(3600), TrafficObserver(30.0))
    assert (min(asked), max(asked)) == (1, 100)
    assert len(set(asked)) == MOST_LOOKED_AT


def test_auto_says_how_far_the_rate_may_be_off():
    made = agent(load_predictor="auto")
    for n in range(40):
        own(made, seen(3600 + 400 * (n * n % 7)))
    said = own(made, seen(3600))
    levels = [said.quantiles[level] for level in ("0.1", "0.5", "0.9", "0.95")]
    assert levels == sorted(levels)
    assert levels[0] < levels[-1]


def test_forecasters_that_do_not_know_how_far_they_are_off_give_no_quantiles():
    assert rising().predict(DGD, 2000.0, seen(3600), TrafficObserver(30.0)).quantiles == {}
