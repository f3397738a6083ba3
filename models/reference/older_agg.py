"""The older regression for engines that prefill and decode at once."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from headrace.models.reference.averages import MovingAverage
from headrace.models.reference.older import Chunk, Regression, chunked_s
from headrace.models.reference.perf import computed_share
from headrace.schemas.fpm import Fpm

UNBOUNDED_BATCH = 1024


@dataclass(frozen=True, slots=True)
class AggDemand:
    """Tokens; latencies in ms; `batch_tokens` is the most that one iteration computes."""

    isl: float
    osl: float
    batch_tokens: int
    ttft_ms: float
    itl_ms: float
    max_kv_tokens: float | None = None
    max_num_seqs: int | None = None
    kv_hit_rate: float | None = None
    accept_length: float = 1.0  # less than 1 is 1

    @property
    def accepted(self) -> float:
        return max(1.0, self.accept_length)

    def prefill(self, batch: int, isl: float) -> float:
        """Tokens that every iteration prefills, so that `batch` requests go on decoding."""
        return batch * self.accepted * isl / max(1.0, self.osl)

    @property
    def computed(self) -> float:
        return self.isl * computed_share(self.kv_hit_rate)

    @property
    def context(self) -> float:
        return self.isl + self.osl / 2


@dataclass(slots=True)
class OlderAgg(Regression):
    axes: ClassVar[int] = 2

    isl: MovingAverage = field(init=False)
    length: MovingAverage = field(init=False)
    prefill_tokens: MovingAverage = field(init=False)

    def __post_init__(self) -> None:
        Regression.__post_init__(self)
        self.isl, self.length, self.prefill_tokens = self.average(), self.average(), self.average()

    def learn(self, fpm: Fpm) -> None:
        s = fpm.scheduled_requests
        if s.num_prefill_requests > 0:
            self.isl.add(s.sum_prefill_tokens / s.num_prefill_requests)
        if s.num_decode_requests > 0:
            self.length.add(s.sum_decode_kv_tokens / s.num_decode_requests)
        self.prefill_tokens.add(float(s.sum_prefill_tokens))
        self.keep((float(s.sum_prefill_tokens), float(s.sum_decode_kv_tokens)), fpm.wall_time)

    def ttft_s(self, queued: float, batch_tokens: int, kv: float, kv_hit_rate: float | None = None) -> float | None:
        """Of the next prompt behind `queued` tokens, while `kv` tokens decode."""
        if self.fit is None or batch_tokens <= 0:
            return None
        total = (queued + self.isl.mean) * computed_share(kv_hit_rate)
        return chunked_s(total, batch_tokens, Chunk(self, kv)) if total > 0 else 0.0

    def itl_s(self, scheduled_kv: float, queued_kv: float) -> float | None:
        if self.fit is None:
            return None
        return self.wall_time_s(self.prefill_tokens.mean, scheduled_kv + queued_kv + self.length.mean)

    def capacity(self, want: AggDemand) -> tuple[float, float, float]:
        """Requests/s, TTFT and ITL, ms, of the last batch before the first that breaks an SLA. Zeros: unknown."""
        if self.fit is None or min(want.isl, want.osl, want.batch_tokens) <= 0:
            return 0.0, 0.0, 0.0
        best = 0.0, 0.0, 0.0
        for batch in range(1, self._most(want) + 1):
            point = self._point(want, batch)
            meets = point[1] <= want.ttft_ms and point[2] <= want.itl_ms
            if not meets:
                return point if batch == 1 else best
            best = point
        return best

    def _most(self, want: AggDemand) -> int:
        known = want.max_kv_tokens
        fits = max(1, int(known / max(1.0, want.context))) if known else UNBOUNDED_BATCH
        low, high, best = 1, max(1, min(fits, want.max_num_seqs or fits, want.batch_tokens - 1)), 1
        while low <= high:
            middle = (low + high) // 2
            room = want.batch_tokens - middle
            if room > 0 and want.prefill(middle, want.computed) <= room:
                best, low = middle, middle + 1
            else:
                high = middle - 1
        return best

    def _point(self, want: AggDemand, batch: int) -> tuple[float, float, float]:
        prefill = min(want.prefill(batch, want.computed), want.batch_tokens)
        seconds = self.wall_time_s(prefill, batch * want.context)
        queued = int(min(want.prefill(batch, want.isl), want.batch_tokens))
        ttft = self.ttft_s(queued, want.batch_tokens, int(batch * want.context), want.kv_hit_rate)
        assert ttft is not None
        room = (want.batch_tokens - batch) / (want.computed * seconds) if want.computed > 0 else math.inf
        rate = min(batch * want.accepted / (want.osl * seconds), room)
        return rate, 1000.0 * ttft, 1000.0 * seconds / want.accepted
