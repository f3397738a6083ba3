"""Forecast the load of the next interval, and take in predictions from outside on equal terms."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.models.forecast.base import Forecaster
from headrace.models.forecast.registry import FORECASTERS, make_forecaster
from headrace.models.known import Known, Unknown
from headrace.schemas.config import PlannerConfig
from headrace.schemas.errors import StateError
from headrace.schemas.prediction import Prediction
from headrace.schemas.reasons import Reason
from headrace.streams.agents.traffic import Observation, TrafficObserver

OWN = "headrace."  # sources with this prefix are ours; what comes back from the bus under it is an echo
PRIORITY = 100
MAX_OUTSIDE = 64
OPINIONS = ("requests_per_s", "isl", "osl", "kv_hit_rate", "accept_length")
_SHOWN = 200  # characters of a foreign reason that are kept


def predictor(config: PlannerConfig) -> str:
    """The forecaster that runs: where no throughput loop asks for forecasts, none needs to be installed."""
    return config.load_predictor if config.throughput_loop or config.load_predictor not in FORECASTERS else "constant"


def forecaster(config: PlannerConfig) -> Forecaster:
    """One forecaster as configured."""
    return make_forecaster(
        predictor(config),
        log1p=config.load_predictor_log1p,
        q_level=config.kalman_q_level,
        q_trend=config.kalman_q_trend,
        r=config.kalman_r,
        min_points=config.kalman_min_points,
    )


@dataclass(slots=True)
class ForecastAgent:
    """Three series, one value per throughput interval: requests/s, mean ISL, mean OSL."""

    config: PlannerConfig
    rate: Forecaster = field(init=False)
    isl: Forecaster = field(init=False)
    osl: Forecaster = field(init=False)
    last_lengths: tuple[float, float] | None = None  # of the last interval in which requests came
    outside: dict[str, Prediction] = field(default_factory=dict)  # by source

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.rate, self.isl, self.osl = (forecaster(self.config) for _ in range(3))

    def handle(self, prediction: Prediction, now: float) -> str | None:
        """Take in an outside prediction; the last one of a source counts. Returns why it was not used, or None."""
        if prediction.source.startswith(OWN):
            return None
        name = f"prediction {prediction.prediction_id} of {prediction.source}"
        if prediction.expires_at <= now:
            return f"{name} had expired when it came"
        made_at = min(prediction.made_at, now)  # a clock ahead must not silence the next ones
        before = self.outside.get(prediction.source)
        if before is not None and made_at <= before.made_at:
            return None
        if before is None and len(self.outside) >= MAX_OUTSIDE:
            self._drop_expired(now)
            if len(self.outside) >= MAX_OUTSIDE:
                return f"{name}: more than {MAX_OUTSIDE} outside sources"
        self.outside[prediction.source] = replace(
            prediction, made_at=made_at, quantiles={}, reason=prediction.reason[:_SHOWN]
        )
        return None

    def _drop_expired(self, now: float) -> None:
        self.outside = {source: p for source, p in self.outside.items() if p.expires_at > now}

    def observe(self, seen: Observation) -> None:
        """Feed one interval. An idle one is a true zero of the rate, and says nothing new about lengths."""
        self.rate.observe(seen.requests_per_s)
        if seen.isl is not None and seen.osl is not None:
            self.last_lengths = (seen.isl, seen.osl)
        if self.last_lengths is not None:
            self.isl.observe(self.last_lengths[0])
            self.osl.observe(self.last_lengths[1])

    def predict(
        self, dgd: str, now: float, observed: Known[Observation] | Unknown, traffic: TrafficObserver
    ) -> Prediction:
        """Our own prediction for the coming interval; nulls and a reason where the interval just seen is unknown."""
        horizon = self.config.throughput_adjustment_interval_seconds
        known = isinstance(observed, Known)
        rate = self.rate.forecast() if known else None
        return Prediction(
            dgd=dgd,
            prediction_id=f"{OWN}forecast:{now:.3f}",
            source=f"{OWN}{self.config.load_predictor}",
            made_at=now,
            expires_at=now + horizon,
            requests_per_s=rate,
            isl=self.isl.forecast() if known else None,
            osl=self.osl.forecast() if known else None,
            kv_hit_rate=traffic.kv_hit_rate,
            accept_length=traffic.accept_length,
            horizon_s=horizon,
            priority=PRIORITY,
            reason=Reason.NO_TRAFFIC_DATA if rate is None else "predicted",
        )

    def best(self, own: Prediction, now: float) -> Prediction | None:
        """The prediction to plan with, or None when nobody names a rate.

        Of all that are live the one of the smallest priority number speaks first; where it has no opinion, the next
        one's counts (reference-semantics 8.1). The result bears the name of the one that gave the rate.
        """
        self._drop_expired(now)
        live = sorted((own, *self.outside.values()), key=lambda p: (p.priority, p.source))
        first = next((p for p in live if p.requests_per_s is not None), None)
        if first is None:
            return None
        said = {name: next((v for p in live if (v := getattr(p, name)) is not None), None) for name in OPINIONS}
        return replace(first, **said)

    def to_state(self) -> dict[str, Any]:
        return {
            "predictor": predictor(self.config),
            "rate": self.rate.to_state(),
            "isl": self.isl.to_state(),
            "osl": self.osl.to_state(),
            "last_lengths": self.last_lengths,
            "outside": msgspec.to_builtins(list(self.outside.values())),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore; a history that the configured predictor cannot read (another name, another scale) is left behind."""
        if state["predictor"] == predictor(self.config):
            try:
                for name in ("rate", "isl", "osl"):
                    getattr(self, name).load_state(state[name])
            except StateError:
                self._begin()
        lengths = state["last_lengths"]
        self.last_lengths = None if lengths is None else (lengths[0], lengths[1])
        self.outside = {p.source: p for p in msgspec.convert(state["outside"], list[Prediction])}
