"""Forecast the load of the next interval, and take in predictions from outside on equal terms."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.models.forecast.auto import Auto
from headrace.models.forecast.base import steps_ahead
from headrace.models.known import Known, Unknown
from headrace.schemas.config import PlannerConfig
from headrace.schemas.prediction import Prediction
from headrace.schemas.reasons import Reason
from headrace.streams.agents.load_series import LoadSeries
from headrace.streams.agents.startup import StartupTimer
from headrace.streams.agents.traffic import Observation, TrafficObserver

OWN = "headrace."  # sources with this prefix are ours; what comes back from the bus under it is an echo
PRIORITY = 100
MAX_OUTSIDE = 64
QUANTILES = (0.1, 0.5, 0.9, 0.95)
MOST_LOOKED_AT = 8  # intervals of a long horizon
OPINIONS = ("requests_per_s", "isl", "osl", "kv_hit_rate", "accept_length")
_SHOWN = 200  # characters of a foreign reason that are kept


@dataclass(slots=True)
class ForecastAgent:
    """What load is expected: by our own forecast of three series, and by whoever publishes predictions."""

    config: PlannerConfig
    series: LoadSeries = field(init=False)
    startup: StartupTimer = field(default_factory=StartupTimer)
    last_lengths: tuple[float, float] | None = None  # of the last interval in which requests came
    outside: dict[str, Prediction] = field(default_factory=dict)  # by source

    def __post_init__(self) -> None:
        self.series = LoadSeries(self.config)

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
        self.series.observe("rate", seen.requests_per_s)
        if seen.isl is not None and seen.osl is not None:
            self.last_lengths = (seen.isl, seen.osl)
        if self.last_lengths is not None:
            self.series.observe("isl", self.last_lengths[0])
            self.series.observe("osl", self.last_lengths[1])

    @property
    def steps(self) -> int:
        """Intervals ahead that cover a start-up, as far as one was measured: what is asked for now serves then."""
        return steps_ahead(self.startup.seconds or 0.0, self.config.throughput_adjustment_interval_seconds)

    def predict(
        self, dgd: str, now: float, observed: Known[Observation] | Unknown, traffic: TrafficObserver
    ) -> Prediction:
        """Our own prediction; nulls and a reason where the interval just seen is unknown.

        It covers all intervals until a worker that is asked for now would serve, and is that of the busiest of them:
        what the nearest one needs must not be taken away, and what the farthest one needs must be ordered now.
        """
        interval_s = self.config.throughput_adjustment_interval_seconds
        steps = self.steps
        busiest, rate = self._busiest(steps) if isinstance(observed, Known) else (1, None)
        known = rate is not None
        return Prediction(
            dgd=dgd,
            prediction_id=f"{OWN}forecast:{now:.3f}",
            source=f"{OWN}{self.config.load_predictor}",
            made_at=now,
            expires_at=now + interval_s,
            requests_per_s=rate,
            isl=self.series.forecast("isl", busiest) if known else None,
            osl=self.series.forecast("osl", busiest) if known else None,
            kv_hit_rate=traffic.kv_hit_rate,
            accept_length=traffic.accept_length,
            horizon_s=steps * interval_s,
            quantiles=self._quantiles(busiest) if known else {},
            priority=PRIORITY,
            reason="predicted" if known else Reason.NO_TRAFFIC_DATA,
        )

    def _busiest(self, steps: int) -> tuple[int, float | None]:
        """Of the next `steps` intervals the one with the highest rate, the nearest of equals, and that rate."""
        looked_at = range(1, steps + 1) if steps <= MOST_LOOKED_AT else _spread(steps)
        rates = [(step, self.series.forecast("rate", step)) for step in looked_at]
        return max(rates, key=lambda found: (found[1] or 0.0, -found[0]))

    def _quantiles(self, steps: int) -> dict[str, float]:
        """Rates that are not exceeded with these probabilities, from forecasters that know how far they are off."""
        rate = self.series.forecasters["rate"]
        found = rate.quantiles(QUANTILES, steps) if isinstance(rate, Auto) else None
        return {} if found is None else {f"{level:g}": value for level, value in zip(QUANTILES, found, strict=True)}

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
            "series": self.series.to_state(),
            "startup": self.startup.to_state(),
            "last_lengths": self.last_lengths,
            "outside": msgspec.to_builtins(list(self.outside.values())),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore; what the configured forecaster cannot read, it learns anew from the past that is kept."""
        self.series.load_state(state["series"])
        self.startup.load_state(state["startup"])
        lengths = state["last_lengths"]
        self.last_lengths = None if lengths is None else (lengths[0], lengths[1])
        self.outside = {p.source: p for p in msgspec.convert(state["outside"], list[Prediction])}


def _spread(steps: int) -> list[int]:
    """So many of them that a glance is enough, the nearest and the farthest included."""
    return sorted({1 + round(n * (steps - 1) / (MOST_LOOKED_AT - 1)) for n in range(MOST_LOOKED_AT)})
