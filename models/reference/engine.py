"""What an iteration takes, learned from iterations: one regression for each kind of it.

The engine model that the reference's planner runs (its Rust shim without a model of the hardware).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.models.reference.averages import MovingAverage
from headrace.models.reference.fits import Fit, fit_ms
from headrace.models.reference.retained import Features, Retained
from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import Fpm

NS = 1_000_000_000
MS = 1_000_000  # nanoseconds
LARGEST_COUNTER = 2**32 - 1


class Kind(Enum):
    """Of an iteration: what it did at the same time. The value is the number of its features."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"

    @property
    def axes(self) -> int:
        return 1 if self is Kind.PREFILL else 2


@dataclass(frozen=True, slots=True)
class Work:
    """What one iteration computes, in requests and tokens."""

    prefill_tokens: int = 0
    decode_requests: int = 0
    decode_kv_tokens: int = 0

    @property
    def kind(self) -> Kind | None:
        """None: nothing to do."""
        decodes = self.decode_requests > 0 or self.decode_kv_tokens > 0
        if self.prefill_tokens > 0:
            return Kind.MIXED if decodes else Kind.PREFILL
        return Kind.DECODE if decodes else None

    @property
    def features(self) -> Features:
        """Of a mixed iteration the batch size is none."""
        if self.kind is Kind.PREFILL:
            return (float(self.prefill_tokens),)
        if self.kind is Kind.MIXED:
            return (float(self.prefill_tokens), float(self.decode_kv_tokens))
        return (float(self.decode_requests), float(self.decode_kv_tokens))


@dataclass(frozen=True, slots=True)
class Learning:
    """How samples are kept, and from how many on they are believed."""

    max_observations: int = 64
    min_observations: int = 5
    bucket_count: int = 16


def check(fpm: Fpm) -> None:
    """Raises RecordError for an FPM that contradicts itself."""
    s = fpm.scheduled_requests
    if fpm.version not in (0, 1):
        raise RecordError(f"FPM of {fpm.worker_id!r}: version {fpm.version}, only 1 is known")
    if (s.sum_prefill_tokens > 0 or s.sum_prefill_kv_tokens > 0) and s.num_prefill_requests == 0:
        raise RecordError(f"FPM of {fpm.worker_id!r}: prefill tokens without a prefill request")
    if s.sum_decode_kv_tokens > 0 and s.num_decode_requests == 0:
        raise RecordError(f"FPM of {fpm.worker_id!r}: decode tokens without a decode request")
    counts = (s.num_prefill_requests, s.sum_prefill_tokens, s.num_decode_requests, s.sum_decode_kv_tokens)
    if max(counts) > LARGEST_COUNTER:
        raise RecordError(f"FPM of {fpm.worker_id!r}: a count above {LARGEST_COUNTER}")


def work_of(fpm: Fpm) -> Work:
    s = fpm.scheduled_requests
    return Work(s.sum_prefill_tokens, s.num_decode_requests, s.sum_decode_kv_tokens)


@dataclass(slots=True)
class EngineTimes:
    """Regressions by kind of iteration, and the prefill that an aggregated engine typically runs beside decode."""

    learning: Learning
    kept: dict[Kind, Retained] = field(init=False)
    prefill_tokens: MovingAverage = field(init=False)
    prefill_requests: MovingAverage = field(init=False)
    _fits: dict[Kind, Fit | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        how = self.learning
        self.kept = {kind: Retained(kind.axes, how.bucket_count, how.max_observations) for kind in Kind}
        self.prefill_tokens = MovingAverage(how.max_observations)
        self.prefill_requests = MovingAverage(how.max_observations)

    def learn(self, iterations: Sequence[Fpm]) -> None:
        """Take iterations in, one after the other.

        Raises RecordError at the first that contradicts itself: those before it have been learned from, the rest are
        lost, and the typical prefill stays as it was.
        """
        for fpm in iterations:
            check(fpm)
            work = work_of(fpm)
            if work.kind is not None and fpm.wall_time > 0.0:
                self.kept[work.kind].add(work.features, 1000.0 * fpm.wall_time)
                self._fits.pop(work.kind, None)
        for fpm in iterations:
            self.prefill_tokens.add(float(fpm.scheduled_requests.sum_prefill_tokens))
            self.prefill_requests.add(float(fpm.scheduled_requests.num_prefill_requests))

    def fit(self, kind: Kind) -> Fit | None:
        """Made when it is asked for, and kept until the next sample of its kind."""
        if kind not in self._fits:
            self._fits[kind] = fit_ms(self.kept[kind].samples, self.learning.min_observations)
        return self._fits[kind]

    @property
    def ready(self) -> bool:
        """Is any kind known? A question about another one is not answered even so."""
        return any(self.fit(kind) is not None for kind in Kind)

    @property
    def observations(self) -> int:
        return sum(map(len, self.kept.values()))

    def time_ns(self, work: Work) -> int | None:
        """Of one iteration, whole nanoseconds: at least 1. No work takes no time; None: its kind is unknown."""
        kind = work.kind
        if kind is None:
            return 0
        fit = self.fit(kind)
        return None if fit is None else round(max(1.0, fit.at(work.features) * MS))
