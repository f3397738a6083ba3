"""What the reference's planner asks of the engine model: TTFT of a queue, ITL of a batch."""

import math
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.models.reference.averages import MovingAverage
from headrace.models.reference.engine import NS, EngineTimes, Learning, Work
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import Fpm

MOST_DISCOUNT = 0.95  # of prefill by KV hits


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one engine, as far as it has said them."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 512
    max_kv_tokens: int = 2_000_000


@dataclass(frozen=True, slots=True)
class Asked:
    """How a load is changed before it is judged: by fewer engines, by a request more, by KV hits."""

    kv_hit_rate: float | None = None
    queue_scale: float = 1.0
    decode_scale: float = 1.0
    include_queued_decode: bool | None = None  # None: the question's own default
    include_queued_prefill_as_kv: bool = False
    add_next_request: bool = True


AS_IS = Asked()


def computed_share(kv_hit_rate: float | None) -> float:
    """The share of prompt tokens that is not found in the KV cache."""
    if kv_hit_rate is None or not math.isfinite(kv_hit_rate):
        return 1.0
    return 1.0 - min(MOST_DISCOUNT, max(0.0, kv_hit_rate))


def whole(value: float) -> int:
    """Rounded up, and not below 0."""
    return math.ceil(value) if value > 0 else 0


@dataclass(slots=True)
class PerfModel:
    """The engines of one role. Without `limits` it learns nothing yet, and remembers what it will learn."""

    role: Role
    learning: Learning = field(default_factory=Learning)
    limits: Limits | None = None
    times: EngineTimes = field(init=False)
    isl: MovingAverage = field(init=False)
    decode_length: MovingAverage = field(init=False)
    recent: deque[Fpm] = field(init=False)

    def __post_init__(self) -> None:
        self.times = EngineTimes(self.learning)
        self.isl = MovingAverage(self.learning.max_observations)
        self.decode_length = MovingAverage(self.learning.max_observations)
        self.recent = deque(maxlen=self.learning.max_observations)

    # -- what is learned -------------------------------------------------------------------------------------------

    def set_limits(self, limits: Limits | None) -> None:
        """Other limits make another model, which learns the most recent iterations anew."""
        if limits == self.limits:
            return
        self.limits = limits
        self.times = EngineTimes(self.learning)
        if limits is not None:
            self._teach(list(self.recent))

    def learn(self, fpms: Iterable[Fpm]) -> None:
        """The newest FPM of every engine rank: means in the order of arrival, times in that of worker and rank."""
        seen = list(fpms)
        self._count(seen)
        self._keep(sorted(seen, key=lambda fpm: (fpm.worker_id, fpm.dp_rank)))

    def bootstrap(self, fpms: Iterable[Fpm]) -> None:
        """Iterations that were measured before, in their order."""
        seen = list(fpms)
        self._count(seen)
        self._keep(seen)

    def _count(self, fpms: list[Fpm]) -> None:
        for fpm in fpms:
            s = fpm.scheduled_requests
            self.isl.add(s.sum_prefill_tokens / s.num_prefill_requests if s.num_prefill_requests > 0 else 0.0)
            if s.num_decode_requests > 0:
                self.decode_length.add(s.sum_decode_kv_tokens / s.num_decode_requests)

    def _keep(self, fpms: list[Fpm]) -> None:
        self.recent.extend(fpms)
        if self.limits is not None:
            self._teach(fpms)

    def _teach(self, fpms: list[Fpm]) -> None:
        with suppress(RecordError):  # the reference warns and goes on
            self.times.learn(fpms)

    @property
    def ready(self) -> bool:
        return self.limits is not None and self.times.ready

    # -- what is asked ---------------------------------------------------------------------------------------------

    def ttft_s(self, fpm: Fpm, asked: Asked = AS_IS) -> float | None:
        """Seconds until the next prompt would have its first token. None: unknown, or no prefill here."""
        if self.role == DECODE or self.limits is None:
            return None
        s, q = fpm.scheduled_requests, fpm.queued_requests
        tokens = q.sum_prefill_tokens * asked.queue_scale
        if asked.add_next_request:
            tokens += self.isl.mean
        queued = bool(asked.include_queued_decode)
        requests = (s.num_decode_requests + queued * q.num_decode_requests) * asked.decode_scale
        kv = (s.sum_decode_kv_tokens + queued * q.sum_decode_kv_tokens) * asked.decode_scale
        beside = Work(0, whole(requests), whole(kv)) if self.role == AGG else Work()
        found = self.prefill_ns(whole(tokens * computed_share(asked.kv_hit_rate)), beside)
        return None if found is None else found / NS

    def prefill_ns(self, tokens: int, beside: Work) -> int | None:
        """Tokens in chunks of a full batch, the rest in one more, each beside the same decodes; nanoseconds."""
        assert self.limits is not None
        full, rest = divmod(tokens, self.limits.max_num_batched_tokens)
        total = 0
        for times, chunk in ((full, self.limits.max_num_batched_tokens), (1, rest)):
            if times and chunk:
                one = self.times.time_ns(Work(chunk, beside.decode_requests, beside.decode_kv_tokens))
                if one is None:
                    return None
                total += times * one
        return total

    def itl_s(self, fpm: Fpm, asked: Asked = AS_IS) -> float | None:
        """Seconds of the next iteration that decodes; what it accepts at once is not taken out of it."""
        if self.role == PREFILL or self.limits is None:
            return None
        s, q = fpm.scheduled_requests, fpm.queued_requests
        requests, kv = s.num_decode_requests, s.sum_decode_kv_tokens
        if asked.include_queued_decode is not False:
            requests, kv = requests + q.num_decode_requests, kv + q.sum_decode_kv_tokens
        if asked.include_queued_prefill_as_kv:
            requests, kv = requests + q.num_prefill_requests, kv + q.sum_prefill_tokens
        next_one = self.decode_length.mean if asked.add_next_request else 0.0
        batch = whole(requests * asked.decode_scale + (next_one > 0))
        held = whole(kv * asked.decode_scale + next_one)
        beside = whole(self.times.prefill_tokens.mean) if self.role == AGG else 0
        found = self.times.time_ns(Work(beside, batch, held))
        return None if found is None else found / NS
