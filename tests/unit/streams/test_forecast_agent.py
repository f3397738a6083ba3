"""Forecasts of our own and of others."""

import msgspec
import pytest
from world import DGD, prediction

from headrace.models.known import Known, Unknown
from headrace.schemas.config import planner_config
from headrace.schemas.errors import ConfigError
from headrace.schemas.prediction import Prediction
from headrace.streams.agents.forecast import MAX_OUTSIDE, ForecastAgent
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
def test_a_history_that_another_predictor_cannot_read_is_left_behind(before, after):
    old, new = agent(**before), agent(**after)
    for _ in range(8):
        own(old, seen(360))
    new.load_state(old.to_state())
    assert new.rate.forecast() is None
    assert new.last_lengths == (1000.0, 200.0)


def test_an_unknown_predictor_is_refused_whether_it_is_needed_or_not():
    for target in ("sla", "throughput"):
        with pytest.raises(ConfigError, match="load_predictor 'arma' is unknown"):
            agent(load_predictor="arma", optimization_target=target)


def test_without_a_throughput_loop_no_predictor_is_made():
    assert type(agent(load_predictor="kalman", optimization_target="throughput").rate).__name__ == "Constant"
