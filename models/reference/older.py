"""The regressions that the reference had before: one kind of iteration each, ordinary least squares, seconds.

Its planner no longer runs them; its tests and its converter of simulator profiles do. This file has what they share,
and those for prefill and decode; `older_agg` has the third.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from headrace.models.reference.averages import MovingAverage
from headrace.models.reference.engine import Learning
from headrace.models.reference.fits import Plane
from headrace.models.reference.perf import computed_share
from headrace.models.reference.retained import Features, Retained
from headrace.schemas.fpm import Fpm

LEAST_S = 1e-6  # no iteration is predicted to be shorter
SLACK = 1e-6  # a slope of the batch size this little below zero is kept
UNBOUNDED_BATCH = 256  # where nobody knows how many tokens fit


@dataclass(slots=True)
class Regression:
    """Iteration time over `axes` features; slopes below zero refuse the fit, but for those of `relaxed`."""

    axes: ClassVar[int] = 1
    relaxed: ClassVar[tuple[int, ...]] = ()

    learning: Learning = field(default_factory=Learning)
    kept: Retained = field(init=False)
    _fit: Plane | None = field(init=False, default=None)
    _stale: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self.kept = Retained(self.axes, self.learning.bucket_count, self.learning.max_observations)

    def average(self) -> MovingAverage:
        return MovingAverage(self.learning.max_observations)

    def keep(self, x: Features, wall_time_s: float) -> None:
        if wall_time_s != 0.0:
            self.kept.add(x, wall_time_s)
            self._stale = True

    @property
    def enough(self) -> bool:
        """Samples, whether or not a line goes through them."""
        return len(self.kept) >= self.learning.min_observations

    @property
    def fit(self) -> Plane | None:
        if self._stale:
            self._fit, self._stale = self._refit() if self.enough else None, False
        return self._fit

    def _refit(self) -> Plane | None:
        plane = least_squares([(x, y) for x, y in self.kept.samples])
        slopes = list(plane.slopes)
        for axis, slope in enumerate(slopes):
            if slope < 0.0 and axis not in self.relaxed:
                return None
            if slope < -SLACK:
                slopes[axis] = 0.0  # neither the intercept nor the other slope is fitted anew
        return Plane(plane.intercept, tuple(slopes))

    def wall_time_s(self, *x: float) -> float:
        """Seconds of an iteration. Only where there is a fit."""
        assert self.fit is not None
        return max(LEAST_S, self.fit.at(x))


def least_squares(samples: Sequence[tuple[Features, float]]) -> Plane:
    """Ordinary least squares with an intercept; of equally good slopes the smallest."""
    x, y = np.array([s[0] for s in samples]), np.array([s[1] for s in samples])
    mean, level = x.mean(axis=0), y.mean()
    slopes = np.linalg.lstsq(x - mean, y - level, rcond=None)[0]
    return Plane(float(level - mean @ slopes), tuple(map(float, slopes)))


def chunked_s(total: float, batch: int, time_of: "OlderPrefill | Chunk") -> float:
    """Seconds to prefill `total` tokens in chunks of at most `batch`; the last one is what remains."""
    chunks = math.ceil(total / batch)
    return sum(time_of.wall_time_s(min(batch, total - i * batch)) for i in range(chunks))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of prefill beside decode."""

    model: Regression
    decode_kv: float

    def wall_time_s(self, tokens: float) -> float:
        return self.model.wall_time_s(tokens, self.decode_kv)


@dataclass(slots=True)
class OlderPrefill(Regression):
    isl: MovingAverage = field(init=False)

    def __post_init__(self) -> None:
        Regression.__post_init__(self)
        self.isl = self.average()

    def learn(self, fpm: Fpm) -> None:
        s = fpm.scheduled_requests
        self.isl.add(s.sum_prefill_tokens / s.num_prefill_requests if s.num_prefill_requests > 0 else 0.0)
        self.keep((float(s.sum_prefill_tokens),), fpm.wall_time)

    def ttft_s(self, queued_tokens: float, batch: int, kv_hit_rate: float | None = None) -> float | None:
        """Of the next prompt behind a queue. None: no fit, or no batch."""
        if self.fit is None or batch <= 0:
            return None
        total = (queued_tokens + self.isl.mean) * computed_share(kv_hit_rate)
        return chunked_s(total, batch, self) if total > 0 else 0.0

    def capacity(self, isl: float, batch: int | None = None) -> tuple[float, float]:
        """Requests/s, one after the other, and the TTFT of one, ms. Zeros: unknown. The SLA changes nothing."""
        if self.fit is None or isl <= 0:
            return 0.0, 0.0
        if batch is not None and 0 < batch < isl:
            full = math.ceil(isl / batch) - 1
            seconds = full * self.wall_time_s(batch) + self.wall_time_s(isl - full * batch)
        else:
            seconds = self.wall_time_s(isl)
        return 1.0 / seconds, 1000.0 * seconds


@dataclass(frozen=True, slots=True)
class DecodeDemand:
    """Tokens; ITL in ms."""

    itl_ms: float
    context: float
    osl: float
    max_kv_tokens: float | None = None
    max_num_seqs: int | None = None
    accept_length: float = 1.0  # less than 1 is 1

    @property
    def accepted(self) -> float:
        return max(1.0, self.accept_length)


@dataclass(slots=True)
class OlderDecode(Regression):
    axes: ClassVar[int] = 2
    relaxed: ClassVar[tuple[int, ...]] = (0,)  # the batch size

    length: MovingAverage = field(init=False)
    batch: MovingAverage = field(init=False)
    most_kv: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        Regression.__post_init__(self)
        self.length, self.batch = self.average(), self.average()

    def learn(self, fpm: Fpm) -> None:
        s = fpm.scheduled_requests
        if s.num_decode_requests > 0:
            self.length.add(s.sum_decode_kv_tokens / s.num_decode_requests)
        self.batch.add(float(s.num_decode_requests))
        self.most_kv = max(self.most_kv, float(s.sum_decode_kv_tokens))
        self.keep((float(s.num_decode_requests), float(s.sum_decode_kv_tokens)), fpm.wall_time)

    def itl_s(self, scheduled_kv: float, queued_kv: float) -> float | None:
        """Of a batch of the mean size and one more, whatever the real one is."""
        if self.fit is None:
            return None
        return self.wall_time_s(self.batch.mean + 1, scheduled_kv + queued_kv + self.length.mean)

    def capacity(self, want: DecodeDemand) -> tuple[float, float]:
        """Requests/s and ITL, ms, of the largest batch within the ITL, and of one request where none is."""
        if self.fit is None or min(want.context, want.osl, want.itl_ms) <= 0:
            return 0.0, 0.0

        def itl_ms(batch: int) -> float:
            return self.wall_time_s(batch, batch * want.context) * 1000.0 / want.accepted

        best, most = 1, self._most(want)
        low, high = 1, most
        while low <= high and itl_ms(1) <= want.itl_ms:
            middle = (low + high) // 2
            if itl_ms(middle) <= want.itl_ms:
                best, low = middle, middle + 1
            else:
                high = middle - 1
        return 1000.0 * best / (want.osl * itl_ms(best)), itl_ms(best)

    def _most(self, want: DecodeDemand) -> int:
        known = want.max_kv_tokens or self.most_kv
        fits = max(1, int(known / want.context)) if known > 0 else UNBOUNDED_BATCH
        return max(1, min(fits, want.max_num_seqs or fits))
