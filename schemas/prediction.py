"""Prediction: the load that is expected. Anyone may publish one; the planner uses it in its next tick."""

import msgspec

from headrace.schemas.base import Amount, Fraction, Name, Priority, Record, Seconds


class Prediction(Record, frozen=True, kw_only=True, tag="headrace.prediction.v1"):
    prediction_id: Name  # unique per source
    source: Name  # names that begin with "headrace." are the planner's own
    made_at: Seconds  # seconds since 1970, UTC
    expires_at: Seconds  # ticks after this do not use it
    requests_per_s: Amount | None  # arrivals per second; null: no opinion
    isl: Amount | None = None  # mean tokens
    osl: Amount | None = None  # mean tokens
    kv_hit_rate: Fraction | None = None  # share of prompt tokens found in a cache
    accept_length: Amount | None = None  # mean tokens per decode step
    horizon_s: Seconds = 0.0  # how far ahead the load is meant, from made_at
    quantiles: dict[str, Amount] = msgspec.field(default_factory=dict)  # "0.9" -> requests_per_s
    priority: Priority = 50  # smaller is asked first; the built-in forecaster has 100
    reason: str = ""  # for people
