"""Generated loads: a smooth rate over time, random arrivals, lognormal lengths. The same seed gives the same trace."""

import math
import random
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from headrace.connectors.simulator.traces import Row, Trace, trace_of
from headrace.schemas.errors import ConfigError

Shape = Literal["constant", "hour", "step", "sine"]
GRID_S = 1.0  # the rate is taken as linear within one second


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load between `requests_per_s` and `peak_requests_per_s`.

    constant: the first alone. hour: quiet, a morning-like peak, a smaller one after it. step: the peak in the middle
    third. sine: swings between both with `period_s`. Arrivals are Poisson, or with `arrival_cv` other than 1 a gamma
    renewal process of that coefficient of variation in operational time. Lengths are lognormal with the given means
    (tokens) and coefficients of variation, rounded, and cut to 1..max.
    """

    shape: Shape = "constant"
    duration_s: float = 3600.0
    requests_per_s: float = 5.0
    peak_requests_per_s: float = 20.0
    period_s: float = 1200.0
    arrival_cv: float = 1.0
    isl_mean: float = 1000.0
    isl_cv: float = 1.0
    isl_max: int = 32_768
    osl_mean: float = 200.0
    osl_cv: float = 0.8
    osl_max: int = 8_192
    seed: int = 1

    def __post_init__(self) -> None:
        positive = (
            "duration_s",
            "requests_per_s",
            "period_s",
            "arrival_cv",
            "isl_mean",
            "osl_mean",
            "isl_max",
            "osl_max",
        )
        for name in positive:
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"load: {name} ({getattr(self, name)}) must be finite and above zero")
        for name in ("isl_cv", "osl_cv"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"load: {name} ({getattr(self, name)}) must be finite and not negative")
        if self.shape != "constant" and not self.requests_per_s <= self.peak_requests_per_s < math.inf:
            raise ConfigError(
                f"load: peak_requests_per_s ({self.peak_requests_per_s}) must not be below "
                f"requests_per_s ({self.requests_per_s})"
            )


def rate_of(spec: LoadSpec) -> Callable[[float], float]:
    """Requests per second at a time in seconds."""
    low, swing = spec.requests_per_s, spec.peak_requests_per_s - spec.requests_per_s
    match spec.shape:
        case "constant":
            return lambda t: low
        case "step":
            third = spec.duration_s / 3.0
            return lambda t: low + (swing if third <= t < 2.0 * third else 0.0)
        case "sine":
            return lambda t: low + swing * (0.5 - 0.5 * math.cos(2.0 * math.pi * t / spec.period_s))
        case "hour":
            return lambda t: low + swing * _morning(t / spec.duration_s)


def _morning(x: float) -> float:
    """0..1 over one period x in 0..1: a steep rise to the peak at 0.42, a slower fall, a small second rise at 0.8."""
    rise, fall = 0.13, 0.17
    peak = math.exp(-(((x - 0.42) / (rise if x < 0.42 else fall)) ** 2))
    return min(1.0, peak + 0.35 * math.exp(-(((x - 0.8) / 0.08) ** 2)))


def generate(spec: LoadSpec) -> Trace:
    """The trace of a load. Deterministic in `spec`."""
    rng = random.Random(spec.seed)
    isl = _lengths(rng, spec.isl_mean, spec.isl_cv, spec.isl_max)
    osl = _lengths(rng, spec.osl_mean, spec.osl_cv, spec.osl_max)
    rows: list[Row] = [(at, next(isl), next(osl)) for at in _arrivals(spec, rng)]
    if not rows:
        raise ConfigError(
            f"load: no request in {spec.duration_s:g} s at {spec.requests_per_s:g} requests/s: raise either"
        )
    return trace_of(spec.shape, rows)


def _arrivals(spec: LoadSpec, rng: random.Random) -> Iterator[float]:
    """Times of a unit-rate renewal process, mapped through the inverse of the integrated rate."""
    rate = rate_of(spec)
    shape = 1.0 / spec.arrival_cv**2  # gamma of mean 1 and that coefficient of variation; 1 is Poisson
    due = rng.gammavariate(shape, 1.0 / shape)
    passed, t, here = 0.0, 0.0, rate(0.0)  # expected requests up to t, and the rate there
    while t < spec.duration_s:
        there = rate(t + GRID_S)
        expected = GRID_S * (here + there) / 2.0
        while due < passed + expected:
            at = t + _within(due - passed, here, there)
            if at >= spec.duration_s:
                return
            yield at
            due += rng.gammavariate(shape, 1.0 / shape)
        passed, t, here = passed + expected, t + GRID_S, there


def _within(area: float, here: float, there: float) -> float:
    """Seconds after which the integral of a rate that goes linearly from `here` to `there` in GRID_S reaches `area`."""
    slope = (there - here) / GRID_S
    root = math.sqrt(max(0.0, here * here + 2.0 * slope * area))
    return min(GRID_S, 2.0 * area / (here + root)) if here + root > 0.0 else 0.0


def _lengths(rng: random.Random, mean: float, cv: float, longest: int) -> Iterator[int]:
    """Lognormal lengths: sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2."""
    sigma = math.sqrt(math.log1p(cv * cv))
    mu = math.log(mean) - sigma * sigma / 2.0
    while True:
        yield max(1, min(longest, round(rng.lognormvariate(mu, sigma))))
