"""A decode engine between its measured points: ITL and throughput by KV usage and context length.

Two ways: `Surface` stays within what was measured; `Grid` is the reference's (reference-semantics 11.2), number for
number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np

from headrace.models.perf.line import Array
from headrace.models.profile.tables import POINTS, DecodeTable, OperatingPoint, Scheme, scipy_part
from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import DecodeProfile

AGREE = 2.0  # times that throughput per load may differ between points of one engine
LARGEST = 500.0  # logarithm of a number that is still one

_DEGENERATE = (
    "decode profile: {n} points, and they lie on one line; a surface needs three that do not: measure at least two "
    "context lengths with two KV usages each"
)


def decode_table(profile: DecodeProfile, scheme: Scheme = "measured") -> DecodeTable:
    """The profile as something to ask. Raises ConfigError where its points span no area."""
    points = np.column_stack([profile.kv_usage, profile.context_length])
    extent = np.ptp(points, axis=0)
    if len(points) < 3 or not (extent > 0).all() or np.linalg.matrix_rank((points - points[0]) / extent) < 2:
        raise ConfigError(_DEGENERATE.format(n=len(points)))
    try:
        return _grid(profile, points) if scheme == "reference" else _surface(profile, points)
    except scipy_part("spatial").QhullError as e:  # so nearly on a line that no triangle can be told from it
        raise ConfigError(_DEGENERATE.format(n=len(points))) from e


@dataclass(frozen=True, slots=True)
class Surface:
    """Flat triangles between neighbouring points, on axes of equal extent; beyond them the nearest measured values.

    A point that was measured is returned as it was, and no ITL is above or below those of the points around it.
    Throughput is made of the load and its ITL where the profile agrees that it can be, else interpolated too: with
    contexts far apart, one KV usage is many requests at one of them and few at the other.

    `outline` holds the corners of the measured area, (n, 2), in order; `surface` gives (ITL, throughput).
    """

    max_kv_tokens: float
    outline: Array
    surface: Callable[[Array], Array]

    def itl_s(self, concurrency: float, context_length: float) -> float:
        return self._at(concurrency, context_length)[0]

    def throughput_per_gpu(self, concurrency: float, context_length: float) -> float:
        return self._at(concurrency, context_length)[1]

    def find_best_throughput_per_gpu(self, itl_s: float, context_length: float) -> OperatingPoint:
        """The load of highest throughput within `itl_s`, the smaller one on a tie; else the load of least ITL."""
        context = self._context(context_length)
        usages = np.linspace(*self._usages(context), POINTS)
        itl, throughput = self.surface(np.column_stack([usages, np.full(POINTS, context)])).T
        meets = itl <= itl_s
        best = int(np.argmax(np.where(meets, throughput, -1.0)) if meets.any() else np.argmin(itl))
        return OperatingPoint(float(throughput[best]), float(itl[best]), float(usages[best]), bool(meets[best]))

    def _at(self, concurrency: float, context_length: float) -> tuple[float, float]:
        usage = concurrency * context_length / self.max_kv_tokens
        context = self._context(context_length)
        low, high = self._usages(context)
        itl, throughput = self.surface(np.array([[min(max(usage, low), high), context]]))[0]
        return float(itl), float(throughput)

    def _context(self, context_length: float) -> float:
        return float(min(max(context_length, self.outline[:, 1].min()), self.outline[:, 1].max()))

    def _usages(self, context: float) -> tuple[float, float]:
        """The least and the most KV usage within the outline at this context length."""
        found: list[float] = []
        for (u0, c0), (u1, c1) in zip(self.outline, np.roll(self.outline, -1, axis=0), strict=True):
            if min(c0, c1) <= context <= max(c0, c1):
                found += [u0, u1] if c0 == c1 else [u0 + (u1 - u0) * (context - c0) / (c1 - c0)]
        return float(min(found)), float(max(found))


def _surface(profile: DecodeProfile, points: Array) -> Surface:
    interpolate, spatial = scipy_part("interpolate"), scipy_part("spatial")
    throughput = np.array(profile.throughput_per_gpu)
    per_load = _throughput_per_load(profile, points)
    values = np.column_stack([profile.itl_s, throughput if per_load is None else per_load])
    linear = interpolate.LinearNDInterpolator(points, values, rescale=True)
    nearest = interpolate.NearestNDInterpolator(points, values, rescale=True)

    def surface(at: Array) -> Array:
        found: Array = linear(at)
        missing = np.isnan(found).any(axis=1)  # on the outline, rounding can put a point just outside
        if missing.any():
            found[missing] = nearest(at[missing])
        if per_load is not None:
            made = found[:, 1] * at[:, 0] / (at[:, 1] * found[:, 0])
            found[:, 1] = np.clip(made, throughput.min(), throughput.max())
        return found

    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    hull = spatial.ConvexHull((points - low) / extent)
    return Surface(profile.max_kv_tokens, points[hull.vertices], surface)


def _throughput_per_load(profile: DecodeProfile, points: Array) -> Array | None:
    """Throughput is usage / (context x ITL) times a number that hardly differs from point to point: these numbers.

    None where the profile does not agree: a usage or throughput of 0, or numbers that lie far apart.
    """
    usage, context = points.T
    throughput, itl = np.array(profile.throughput_per_gpu), np.array(profile.itl_s)
    if min(usage.min(), throughput.min()) <= 0:
        return None
    logs = np.log(throughput) + np.log(itl) + np.log(context) - np.log(usage)
    if logs.max() - logs.min() > log(AGREE) or abs(logs).max() > LARGEST:
        return None
    found: Array = np.exp(logs)
    return found


@dataclass(frozen=True, slots=True)
class Grid:
    """Cubic surfaces (Clough and Tocher) on a grid of 100 KV usages x 100 context lengths, looked up by nearest cell.

    `itl` and `throughput` have shape (100, 100): context length from 0 to the longest measured, then KV usage from 0
    to 1. Cells outside the measured area hold the value of the nearest point.
    """

    max_kv_tokens: float
    longest_context: float
    itl: Array
    throughput: Array

    def cell(self, concurrency: float, context_length: float) -> tuple[int, int]:
        """(index of the KV usage, index of the context length), halves rounded to even."""
        usage = concurrency * context_length / self.max_kv_tokens
        return _nearest(usage, 1.0), self._row(context_length)

    def itl_s(self, concurrency: float, context_length: float) -> float:
        x, y = self.cell(concurrency, context_length)
        return float(self.itl[y, x])

    def throughput_per_gpu(self, concurrency: float, context_length: float) -> float:
        x, y = self.cell(concurrency, context_length)
        return float(self.throughput[y, x])

    def find_best_throughput_per_gpu(self, itl_s: float, context_length: float) -> OperatingPoint:
        """The fullest cell within `itl_s`, whatever its throughput; the emptiest where there is none."""
        y = self._row(context_length)
        meeting = np.flatnonzero(self.itl[y] <= itl_s)
        x = int(meeting[-1]) if len(meeting) else 0
        return OperatingPoint(float(self.throughput[y, x]), float(self.itl[y, x]), x / (POINTS - 1), bool(len(meeting)))

    def _row(self, context_length: float) -> int:
        return _nearest(context_length, self.longest_context)


def _nearest(value: float, most: float) -> int:
    return int(np.clip(np.round(value / (most / (POINTS - 1))), 0, POINTS - 1))


def _grid(profile: DecodeProfile, points: Array) -> Grid:
    griddata = scipy_part("interpolate").griddata
    longest = max(profile.context_length)
    at = tuple(np.meshgrid(np.linspace(0, 1, POINTS), np.linspace(0, longest, POINTS)))
    grids = []
    for values in (np.array(profile.itl_s), np.array(profile.throughput_per_gpu)):
        cubic = griddata(points, values, at, method="cubic")
        outside = griddata(points, values, at, method="nearest")
        grids.append(np.where(np.isnan(cubic), outside, cubic))
    return Grid(profile.max_kv_tokens, longest, *grids)
