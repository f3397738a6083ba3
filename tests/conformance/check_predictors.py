"""Forecasters, step by step: constant, kalman, arima, prophet, and the series that the planner forecasts."""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from conformance import Case, checks, close

from headrace.models.forecast.arima import Arima
from headrace.models.forecast.base import MAX_GROWTH, Forecaster, warm_up
from headrace.models.forecast.kalman import Kalman
from headrace.models.forecast.prophet import Prophet
from headrace.models.forecast.registry import make_forecaster
from headrace.models.known import Known, Unknown
from headrace.schemas.config import planner_config
from headrace.schemas.errors import ConfigError
from headrace.streams.agents.forecast import ForecastAgent
from headrace.streams.agents.traffic import Observation, TrafficObserver

BOUNDED = "Forecasts stay within what was seen"
UNKNOWN = "An unknown value is not a zero"
NEGATIVE = "A negative variance is refused"
RESELECTED = "ARIMA selects its order anew"
TOO_SMALL = "A window too small for a fit is refused"

for noisy in ("cmdstanpy", "prophet.plot"):
    logging.getLogger(noisy).addHandler(logging.NullHandler())
    logging.getLogger(noisy).propagate = False


def zeros(values: list[float] | None) -> list[float]:
    """What the reference makes of a series: NaN is a zero."""
    return [0.0 if math.isnan(v) else float(v) for v in values or []]


def steps(case: Case, forecaster: Forecaster) -> Iterator[tuple[float, Mapping[str, Any], float]]:
    """Feeds a case: its warm-up, then value after value. Gives each step's forecast, record, and largest value."""
    warm = zeros(case.input.get("warm_series"))
    warm_up(forecaster, warm)
    largest = max(warm, default=0.0)
    for value, want in zip(zeros(case.input["series"]), case.expected["steps"], strict=True):
        forecaster.observe(value)
        largest = max(largest, value)
        kept = case.input.get("window", math.inf)
        assert min(forecaster.to_state()["history"]["points"], kept) == want["n_buffered"]
        if "predict" in want:
            reads = want["predict"] if isinstance(want["predict"], list) else [want["predict"]]
            for read in reads:
                yield forecaster.forecast() or 0.0, {**want, "predict": float(read)}, largest


def same(case: Case, got: float, want: float) -> bool:
    return close(got, want, rel=case.tolerance["rel"], absolute=case.tolerance["abs"])


def bounded(want: float, largest: float) -> float:
    return min(max(want, 0.0), MAX_GROWTH * largest)


def assert_unknown_leaves_no_trace(forecaster: Forecaster) -> None:
    before = forecaster.to_state()
    forecaster.observe(math.nan)
    assert forecaster.to_state() == before


def with_unknown(case: Case) -> set[str]:
    """The difference that a case with NaN in its series shows, whatever the forecaster."""
    if not any(map(math.isnan, [*case.input["series"], *(case.input.get("warm_series") or [])])):
        return set()
    assert_unknown_leaves_no_trace(make_forecaster("constant"))
    return {UNKNOWN}


@checks("01_predictor_constant")
def constant(case: Case) -> set[str]:
    if not case.input["series"]:
        assert make_forecaster("constant").forecast() is None  # the planner publishes null, the reference 0
        return {UNKNOWN}
    for got, want, _ in steps(case, make_forecaster("constant")):
        assert same(case, got, want["predict"])
    return with_unknown(case)


@checks("01_predictor_kalman")
def kalman(case: Case) -> set[str]:
    """With `min_points` 1: the reference has the option, and forecasts from the first value on."""
    variances = {name: case.input[f"kalman_{name}"] for name in ("q_level", "q_trend", "r")}
    differences = with_unknown(case)
    if min(variances.values()) < 0:
        with pytest.raises(ConfigError, match="is a variance"):
            Kalman(**variances)
        variances = {name: max(0.0, v) for name, v in variances.items()}  # as the reference takes them
        differences.add(NEGATIVE)
    for got, want, largest in steps(case, Kalman(**variances, log1p=case.input["log1p"], min_points=1)):
        assert same(case, got, bounded(want["predict"], largest))
        if not same(case, got, want["predict"]):
            differences.add(BOUNDED)
    return differences


@checks("01_predictor_arima", asks=lambda case: case.quirk)
def arima(case: Case) -> set[str]:
    """Our own answer: an order of this history, not of its first five values, on a scale that may change again.

    Where the reference's order is right we may come to another one; that is no case. The copy gives its forecasts.
    """
    chosen_once = "chosen once" in case.why
    arima = Arima(log1p=case.input["log1p"], update_every=4, growth=2.0)
    arima.inline = chosen_once  # else one fit, at the end, is enough
    series, forecasts = zeros(case.input["series"]), [got for got, _, _ in steps(case, arima)]
    arima.inline = True
    last = arima.forecast()
    assert last is not None
    assert arima.order is not None
    if arima.order.log_unit is None:
        assert arima.order.p or arima.order.q
    theirs = [float(want["predict"]) for want in case.expected["steps"]]
    if chosen_once:
        assert _error(forecasts, series) <= 1.25 * _error(theirs, series)
    return {RESELECTED} | with_unknown(case)


def _error(forecasts: list[float], series: list[float]) -> float:
    return sum(abs(f - v) for f, v in zip(forecasts[:-1], series[1:], strict=True))


@checks("01_predictor_prophet")
def prophet(case: Case) -> set[str]:
    options = {"log1p": case.input["log1p"], "window": case.input["window"], "interval_s": case.input["step_seconds"]}
    if case.quirk:
        with pytest.raises(ConfigError, match="prophet_window_size"):
            Prophet(**options)
        return {TOO_SMALL}
    for got, want, largest in steps(case, Prophet(**options)):
        assert same(case, got, bounded(want["predict"], largest))
        assert same(case, got, want["predict"])
    return set()


@checks("06_load_predict_builtin")
def planned_series(case: Case) -> set[str]:
    """Rate and lengths, as the planner's agent forecasts them. Windows of 1 s: then the rate is the count."""
    config = {k: case.input["config"][k] for k in ("load_predictor", "load_predictor_log1p", "mode")}
    agent = ForecastAgent(planner_config(config | {"optimization_target": "sla", "kalman_min_points": 1}))
    for seen in case.input.get("warm", ()):
        agent.observe(_observation(seen))
    for series in agent.series.forecasters.values():
        series.rearm()
    traffic, differences, largest = TrafficObserver(max_skew_s=1.0), set(), 0.0
    for now, (seen, want) in enumerate(zip(case.input["ticks"], case.expected["ticks"], strict=True)):
        if seen is None:
            own = agent.predict("default/main", float(now), Unknown("no traffic"), traffic)
            assert own.requests_per_s is None
            assert own.reason == want["reason"] == "no_traffic_data"
            continue
        largest = max(largest, seen["num_req"])
        agent.observe(_observation(seen))
        own = agent.predict("default/main", float(now), Known(_observation(seen)), traffic)
        for name, got in (("num_req", own.requests_per_s), ("isl", own.isl), ("osl", own.osl)):
            said = float(want["prediction"][f"predicted_{name}"])
            if name == "num_req":
                differences |= set() if same(case, got or 0.0, said) else {BOUNDED}
                said = bounded(said, largest) if said < 0 else said
            elif got is None:
                differences.add(UNKNOWN)  # the lengths of requests that never came: null here, 0 there
            assert same(case, got or 0.0, said)
    return differences


def _observation(seen: Mapping[str, Any]) -> Observation:
    requests = int(seen["num_req"])
    return Observation(requests, 1.0, seen["isl"] if requests else None, seen["osl"] if requests else None)
