"""ForecastFit: what a fit of a forecaster found. Made beside the planner, and read back by it as an input."""

from typing import Any

from headrace.schemas.base import Amount, Name, Record, Seconds, Serial


class ForecastFit(Record, frozen=True, kw_only=True, tag="headrace.forecast_fit.v1"):
    fit_id: Name  # unique per DGD
    series: Name  # rate, isl or osl
    kind: Name  # what was fitted: arima, prophet
    options: Name  # of the forecaster that asked for it; under other options it is not used
    at: Serial  # values of the series that had been seen when it was asked for
    newest: Amount  # the last of them, in the unit of the series
    values: dict[str, Any] | None  # what was found, by kind; null: it failed
    made_at: Seconds  # when it was ready, seconds since 1970, UTC
    failure: str = ""  # for people, where there are no values
