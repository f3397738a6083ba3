"""A prefill engine between its measured prompt lengths: TTFT and throughput by prompt length."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.models.perf.line import Array
from headrace.models.profile.tables import Scheme, scipy_part
from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import Numbers, PrefillProfile

CUBIC_POINTS = 4  # that a not-a-knot cubic needs

Curve = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class InterpolatedPrefill:
    """A `PrefillTable`: curves through the measured points, of prompt lengths held within `shortest` and `longest`."""

    shortest: float
    longest: float
    ttft: Curve
    throughput: Curve

    def ttft_s(self, isl: float) -> float:
        return self.ttft(self._held(isl))

    def throughput_per_gpu(self, isl: float) -> float:
        return self.throughput(self._held(isl))

    def _held(self, isl: float) -> float:
        return min(max(isl, self.shortest), self.longest)


def prefill_table(profile: PrefillProfile, scheme: Scheme = "measured") -> InterpolatedPrefill:
    """`measured`: monotone cubic Hermite curves (Fritsch and Butland 1984), which never leave the measured values.

    `reference`: not-a-knot cubic splines (reference-semantics 11.2), which may; they need four lengths. Points of equal
    length count as one, their mean. Raises ConfigError where there are too few points.
    """
    isl = np.array(sorted(set(profile.isl)))
    least = CUBIC_POINTS if scheme == "reference" else 1
    if len(isl) < least:
        raise ConfigError(
            f"prefill profile: {len(isl)} prompt lengths are too few for the reference's cubic curve, which needs "
            f"{least}: measure more, or use the scheme 'measured'"
        )
    curves = [_curve(isl, _means(profile.isl, y, isl), scheme) for y in (profile.ttft_s, profile.throughput_per_gpu)]
    return InterpolatedPrefill(float(isl[0]), float(isl[-1]), *curves)


def _means(x: Numbers, y: Numbers, distinct: Array) -> Array:
    """The mean of `y` at each of the `distinct` values of `x`, in their order."""
    at = np.searchsorted(distinct, x)
    means: Array = np.bincount(at, weights=y) / np.bincount(at)
    return means


def _curve(x: Array, y: Array, scheme: Scheme) -> Curve:
    if len(x) == 1:
        only = float(y[0])
        return lambda _: only
    interpolate = scipy_part("interpolate")
    curve = (interpolate.CubicSpline if scheme == "reference" else interpolate.PchipInterpolator)(x, y)
    return lambda isl: float(curve(isl))
