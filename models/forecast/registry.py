"""Forecasters by the name that `load_predictor` gives. A forecaster's module is imported when it is asked for."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headrace.models.forecast.base import Forecaster
from headrace.schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a forecaster lives, which options it takes, and the extra that it needs."""

    module: str
    name: str
    options: frozenset[str] = frozenset()
    extra: str | None = None


FORECASTERS: dict[str, Entry] = {
    "constant": Entry("headrace.models.forecast.constant", "Constant"),
    "kalman": Entry(
        "headrace.models.forecast.kalman",
        "Kalman",
        frozenset({"q_level", "q_trend", "r", "min_points", "log1p"}),
        extra="kalman",
    ),
    "arima": Entry(
        "headrace.models.forecast.arima",
        "Arima",
        frozenset({"log1p", "max_history", "growth", "update_every", "reselect", "normalise", "order"}),
        extra="arima",
    ),
    "prophet": Entry(
        "headrace.models.forecast.prophet",
        "Prophet",
        frozenset({"log1p", "window", "interval_s", "refit_every"}),
        extra="prophet",
    ),
    "seasonal": Entry("headrace.models.forecast.seasonal", "Seasonal", frozenset({"log1p"})),
    "auto": Entry(
        "headrace.models.forecast.auto",
        "Auto",
        frozenset({"members", "log1p", "window", "interval_s", "q_level", "q_trend", "r", "min_points"}),
    ),
}
OPTIONS = frozenset().union(*(e.options for e in FORECASTERS.values()))


def make_forecaster(name: str, **options: Any) -> Forecaster:
    """The forecaster called `name`.

    `options` may hold those of every forecaster; each takes its own, so that one configuration serves all.
    Raises ConfigError for an unknown name, an option that no forecaster has, or a missing extra.
    """
    entry = FORECASTERS.get(name)
    if entry is None:
        raise ConfigError(f"load_predictor {name!r} is unknown: use {known_names()}")
    if stray := sorted(options.keys() - OPTIONS):
        raise ConfigError(f"forecaster option {stray[0]!r} is unknown: the options are {', '.join(sorted(OPTIONS))}")
    make: type[Forecaster] = getattr(import_module(entry.module), entry.name)
    return make(**{key: value for key, value in options.items() if key in entry.options})


def known_names() -> str:
    """The names for a message: ``constant, kalman (pip install headrace[kalman])``."""
    return ", ".join(n + (f" (pip install headrace[{e.extra}])" if e.extra else "") for n, e in FORECASTERS.items())
