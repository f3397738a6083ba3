"""How many engines keep the SLA for most requests when arrivals are random: waiting for prefill, crowding in decode.

Waiting: an engine is a queue G/G/1. At utilisation r a request waits with probability r, and if it does, for
S (ca2 + cs2) / 2 / (1 - r) seconds on average, S being its service time; the wait is taken as exponential. Sources:
Kingman 1962; Allen and Cunneen, in Hall, Queueing Methods, 1991. Engines do not share a queue: a router that takes them
in turn gives each every Nth request, which evens random arrivals out (ca2 = 1/N) but pools nothing.

Crowding: requests in decode are a Poisson number around Little's mean, so a batch of b on average is now and then
b + z sqrt(b): the square-root rule of staffing (Halfin and Whitt 1981). Iteration time rises with the batch, and the
batch with iteration time, so the mean is the fixed point of both.
"""

import math
from dataclasses import dataclass

from headrace.models.perf.latency import EngineLimits, cached_share
from headrace.models.perf.line import Line

MOST = 100_000  # engines
FULL = 0.98  # utilisation above which a queue has no useful steady state


@dataclass(frozen=True, slots=True)
class Demand:
    """What must be served: arrivals in requests/s, mean lengths in tokens, and how unequal prompts are.

    `isl_cv2` is the squared coefficient of variation of prompt lengths; 1 where it is unknown.
    """

    requests_per_s: float
    isl: float
    osl: float
    isl_cv2: float = 1.0
    kv_hit_rate: float | None = None
    accept_length: float = 1.0

    @property
    def prompt(self) -> float:
        """Prompt tokens to compute, cache hits taken off."""
        return self.isl * (1.0 - cached_share(self.kv_hit_rate))

    @property
    def context(self) -> float:
        """KV tokens that a decoding request holds on average."""
        return self.isl + self.osl / 2.0


@dataclass(frozen=True, slots=True)
class Targets:
    """The SLA in seconds, the share of requests that may wait too long, and the spread of a batch in deviations."""

    ttft_s: float
    itl_s: float
    late_share: float
    batch_deviations: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """How many engines, and what one of them would then look like. `met` is false where no number meets the SLA."""

    engines: int
    utilisation: float
    met: bool = True


def late_share(arrivals_per_s: float, service_s: float, variability: float, slack_s: float) -> float:
    """The share of one engine's requests that wait longer than `slack_s`; `variability` is (ca2 + cs2) / 2.

    1 when it is overloaded.
    """
    busy = arrivals_per_s * service_s
    if busy >= FULL:
        return 1.0
    if busy <= 0:
        return 0.0
    mean_wait_s = service_s * variability / (1.0 - busy)
    return busy * math.exp(-max(0.0, slack_s) / mean_wait_s)


def prefill_engines(d: Demand, line: Line, t: Targets, backlog_per_s: float = 0.0) -> Sizing:
    """Prefill engines for which at most `late_share` of requests miss the TTFT target.

    `backlog_per_s` are requests/s on top, to work off what has queued up; they count as load, not as randomness. A
    prompt longer than the mean leaves less slack: half a mean service more is taken off it.
    """
    service_s = line.at(d.prompt)
    slack_s = t.ttft_s - 1.5 * service_s
    if slack_s <= 0:  # a lone prompt misses the target: more engines only keep the queue from growing
        engines = max(1, math.ceil((d.requests_per_s + backlog_per_s) * service_s / FULL))
        return Sizing(engines, d.requests_per_s * service_s / engines, met=False)
    engines = max(1, math.ceil((d.requests_per_s + backlog_per_s) * service_s))
    while engines < MOST:
        variability = (1.0 / engines + d.isl_cv2) / 2.0
        if late_share(d.requests_per_s / engines, service_s, variability, slack_s) <= t.late_share:
            break
        engines += 1
    return Sizing(engines, d.requests_per_s * service_s / engines)


def decode_engines(d: Demand, line: Line, limits: EngineLimits, t: Targets) -> Sizing:
    """Decode engines that stay within the ITL target, and hold the KV, even when their batch is crowded."""
    steps_per_s = d.requests_per_s * d.osl / d.accept_length  # request-iterations that must be done each second
    fixed_s, per_request_s = _decode_prices(line, d.context)
    lone_s = fixed_s + per_request_s
    if lone_s > t.itl_s * d.accept_length:
        most = max(1.0, min(limits.max_num_seqs, limits.max_kv_tokens / max(1.0, d.context)))
        engines = max(1, math.ceil(steps_per_s * (fixed_s + per_request_s * most) / most))
        return Sizing(engines, 1.0, met=False)
    engines = 1
    while engines < MOST and not _batch_fits(steps_per_s / engines, fixed_s, per_request_s, d, limits, t):
        engines = max(engines + 1, math.ceil(steps_per_s * per_request_s))
    return Sizing(engines, steps_per_s * per_request_s / engines)


def crowded_engines(requests: float, kv_tokens: float, line: Line, limits: EngineLimits, itl_s: float) -> int:
    """Decode engines over which the requests decoding or waiting now would stay within `itl_s` per iteration."""
    engines = 1
    while engines < MOST:
        share, kv = requests / engines, kv_tokens / engines
        if line.at(0.0, share, kv) <= itl_s and kv <= limits.max_kv_tokens and share <= limits.max_num_seqs:
            break
        if engines >= requests:
            break  # one request an engine: more cannot help
        engines += 1
    return engines


def agg_engines(d: Demand, line: Line, limits: EngineLimits, t: Targets, backlog_per_s: float = 0.0) -> Sizing:
    """Aggregated engines: prompts are computed beside the batch that decodes, and both targets must hold."""
    engines = max(1, math.ceil((d.requests_per_s + backlog_per_s) * d.prompt * _price(line, limits)))
    fixed_s, per_request_s = _decode_prices(line, d.context)
    if fixed_s + per_request_s > t.itl_s * d.accept_length or line.at(d.prompt, 1.0, d.context) > t.ttft_s:
        return Sizing(engines, 1.0, met=False)
    while engines < MOST and not _mixed_fits(d, line, limits, t, engines):
        engines += 1
    return Sizing(engines, d.requests_per_s * d.prompt * _price(line, limits) / engines)


def _decode_prices(line: Line, context: float) -> tuple[float, float]:
    """Seconds of an empty iteration, and of each request of that context in it."""
    few, many = line.at(0.0, 1.0, context), line.at(0.0, 101.0, 101.0 * context)
    per_request_s = max(0.0, (many - few) / 100.0)
    return few - per_request_s, per_request_s


def _price(line: Line, limits: EngineLimits) -> float:
    """Seconds that a prompt token adds to an iteration, in a full batch."""
    full = float(max(1, limits.max_num_batched_tokens))
    return (line.at(full) - line.at(0.0)) / full


def _crowd(batch: float, t: Targets, d: Demand) -> float:
    """A batch when it is crowded; unequal contexts crowd it more."""
    return batch + t.batch_deviations * math.sqrt(max(1.0, batch) * (1.0 + d.isl_cv2 / 2.0))


def _batch_fits(
    steps_per_s: float, fixed_s: float, per_request_s: float, d: Demand, limits: EngineLimits, t: Targets
) -> bool:
    busy = steps_per_s * per_request_s
    if busy >= FULL:
        return False
    crowd = _crowd(steps_per_s * fixed_s / (1.0 - busy), t, d)
    if crowd > limits.max_num_seqs or crowd * d.context > limits.max_kv_tokens:
        return False
    return fixed_s + per_request_s * crowd <= t.itl_s * d.accept_length


def _mixed_fits(d: Demand, line: Line, limits: EngineLimits, t: Targets, engines: int) -> bool:
    rate = d.requests_per_s / engines
    fixed_s, per_request_s = _decode_prices(line, d.context)
    prefill_busy = rate * d.prompt * _price(line, limits)
    decode_busy = rate * d.osl / d.accept_length * per_request_s
    if prefill_busy + decode_busy >= FULL:
        return False
    step_s = fixed_s / (1.0 - prefill_busy - decode_busy)  # an average iteration, with its share of prompts
    crowd = _crowd(rate * d.osl / d.accept_length * step_s, t, d)
    if (
        crowd > limits.max_num_seqs
        or crowd * d.context > limits.max_kv_tokens
        or crowd >= limits.max_num_batched_tokens
    ):
        return False
    crowded_s = (fixed_s + per_request_s * crowd) / (1.0 - prefill_busy)
    room = limits.max_num_batched_tokens - crowd
    own_s = math.ceil(d.prompt / room) * line.at(min(d.prompt, room), crowd, crowd * d.context)
    variability = (1.0 / engines + d.isl_cv2) / 2.0
    late = late_share(rate, d.prompt / room * crowded_s, variability, t.ttft_s - own_s)
    return crowded_s <= t.itl_s * d.accept_length and own_s < t.ttft_s and late <= t.late_share
