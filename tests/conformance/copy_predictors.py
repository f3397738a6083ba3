"""Our copy of the reference's forecasts: single series, and the load that its planner forecasts."""

from collections.abc import Iterator

from conformance import Case, close, copies
from reference import settings_of, traffic_of

from headrace.models.reference.forecast import LoadForecast
from headrace.models.reference.predictors import Series, make_series
from headrace.models.reference.settings import Settings


@copies("01_predictor_constant", "01_predictor_kalman", "01_predictor_arima")
def predictor(case: Case) -> None:
    """Prophet's cases are not among them: what Headrace forecasts with gives the reference's answers itself."""
    i = case.input
    named = {name: i[name] for name in ("kalman_q_level", "kalman_q_trend", "kalman_r") if name in i}
    settings = Settings(load_predictor=i["predictor"], load_predictor_log1p=i.get("log1p", False), **named)
    for got, want in _forecasts(case, make_series(settings)):
        assert close(got, want, rel=case.tolerance["rel"], absolute=case.tolerance["abs"]), (got, want)


def _forecasts(case: Case, series: Series) -> Iterator[tuple[float, float]]:
    for value in case.input.get("warm_series") or []:
        series.add(value)
    series.rearm()
    for value, want in zip(case.input["series"], case.expected["steps"], strict=True):
        series.add(value)
        assert series.points == want["n_buffered"]
        assert close(series.last, want.get("last_value", series.last), rel=1e-12)
        if "predict" in want:
            for read in want["predict"] if isinstance(want["predict"], list) else [want["predict"]]:
                yield series.predict(), float(read)


@copies("06_load_predict_builtin")
def load_forecast(case: Case) -> None:
    settings = settings_of(case.input["config"])
    forecast = LoadForecast(settings)
    forecast.warm_up(window for row in case.input.get("warm", []) if (window := traffic_of(row)) is not None)
    for row, want in zip(case.input["ticks"], case.expected["ticks"], strict=True):
        traffic = traffic_of(row)
        assert (traffic is None) == (want["reason"] == "no_traffic_data")
        if traffic is None:
            continue
        forecast.observe(traffic)
        got = forecast.predict(settings.speculative_nextn)
        for name, value in want["prediction"].items():
            found = getattr(got, name.removeprefix("predicted_"))
            assert close(found, value, rel=case.tolerance["rel"], absolute=case.tolerance["abs"]), name
