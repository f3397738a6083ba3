"""How many engines keep the SLA for most requests when arrivals are random: waiting for prefill, crowding in decode.

Waiting: an engine is a queue G/G/1. At utilisation r a request waits with probability r, and if it does, for
S (ca2 + cs2) / 2 / (1 - r) seconds on average, S being its service time; the wait is taken as exponential. Sources:
Kingman 1962; Allen and Cunneen, in Hall, Queueing Methods, 1991. Engines do not share a queue: a router that takes them
in turn gives each every Nth request, which evens arrivals of dispersion I out (ca2 = I/N) but pools nothing.

Crowding: requests in decode vary around Little's mean like arrivals over one stay, so a batch of b on average is now
and then b + z sqrt(I b): the square-root rule of staffing (Halfin and Whitt 1981). Iteration time rises with the batch,
and the batch with iteration time, so the mean is the fixed point of both.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

from headrace.models.perf.latency import EngineLimits, cached_share
from headrace.models.perf.line import FLOOR_S, Line

MOST = 100_000  # engines
FELT = (
    2.0 / math.e
)  # variance that the mean over one stay keeps where correlation decays over one: 2 (x - 1 + e^-x), x = 1
FULL = 0.98  # utilisation above which a queue has no useful steady state


@dataclass(frozen=True, slots=True)
class Demand:
    """What must be served: arrivals in requests/s, mean lengths in tokens, and how unequal both are.

    `isl_cv2` is the squared coefficient of variation of prompt lengths; 1 where it is unknown. `dispersion` is the
    variance over the mean of the arrivals in `dispersion_s` seconds: 1 for a Poisson stream, more for bursts.
    """

    requests_per_s: float
    isl: float
    osl: float
    isl_cv2: float = 1.0
    kv_hit_rate: float | None = None
    accept_length: float = 1.0
    dispersion: float = 1.0
    dispersion_s: float = 5.0

    def dispersion_over(self, seconds: float) -> float:
        """The index of dispersion over a shorter time; over almost none every stream is a Poisson one.

        Linear in between, as for bursts of any shape that last longer (Cox and Lewis 1966, the index of dispersion of
        counts of a Poisson process whose rate varies).
        """
        return 1.0 + (self.dispersion - 1.0) * min(1.0, seconds / self.dispersion_s)

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
    """The SLA in seconds, and the share of a role's requests that may miss it."""

    ttft_s: float
    itl_s: float
    late_share: float

    @property
    def deviations(self) -> float:
        """Standard deviations above the mean that a normal variable exceeds with probability `late_share`."""
        return NormalDist().inv_cdf(1.0 - self.late_share)


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
        if _late(d, engines, service_s, slack_s) <= t.late_share:
            break
        engines += 1
    return Sizing(engines, d.requests_per_s * service_s / engines)


def _late(d: Demand, engines: int, service_s: float, slack_s: float) -> float:
    """Share that waits too long; bursts count over the time in which an engine's queue forgets, S / (1 - r)^2."""
    per_engine = d.requests_per_s / engines
    idle = 1.0 - per_engine * service_s
    if idle <= 1.0 - FULL:
        return 1.0
    variability = (d.dispersion_over(service_s / idle**2) / engines + d.isl_cv2) / 2.0
    return late_share(per_engine, service_s, variability, slack_s)


def decode_engines(d: Demand, line: Line, limits: EngineLimits, t: Targets) -> Sizing:
    """Decode engines that stay within the ITL target, and hold the KV, even when their batch is crowded."""
    steps_per_s = d.requests_per_s * d.osl / d.accept_length  # request-iterations that must be done each second
    fixed_s, per_request_s = _decode_prices(line, d.context)
    lone_s = fixed_s + per_request_s
    if lone_s > t.itl_s * d.accept_length:
        knee = _knee(fixed_s, per_request_s, d, limits)
        return Sizing(max(1, math.ceil(steps_per_s * (fixed_s + per_request_s * knee) / knee)), 1.0, met=False)
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


@dataclass(frozen=True, slots=True)
class AggLines:
    """An aggregated engine's iterations: those that only decode, and those that also compute prompts."""

    decode: Line
    mixed: Line

    def prompt_s(self, prompt: float, context: float, limits: EngineLimits) -> float:
        """Seconds that one prompt takes away from decoding: what its iterations last longer than decoding alone."""
        chunks = max(1, math.ceil(prompt / max(1, limits.max_num_batched_tokens)))
        with_prompt = self.mixed.at(prompt / chunks, 1.0, context)
        return chunks * max(FLOOR_S, with_prompt - self.decode.at(0.0, 1.0, context))


def agg_engines(d: Demand, lines: AggLines, limits: EngineLimits, t: Targets, backlog_per_s: float = 0.0) -> Sizing:
    """Aggregated engines: prompts interrupt the batch that decodes, and both targets must hold.

    A request's mean time between tokens is its decode iterations, stretched by the share of time that prompts take.
    """
    prompt_s = lines.prompt_s(d.prompt, d.context, limits)
    fixed_s, per_request_s = _decode_prices(lines.decode, d.context)
    steps_per_s = d.requests_per_s * d.osl / d.accept_length
    engines = max(1, math.ceil((d.requests_per_s + backlog_per_s) * prompt_s))
    if fixed_s + per_request_s > t.itl_s * d.accept_length or lines.mixed.at(d.prompt, 1.0, d.context) > t.ttft_s:
        knee = _knee(fixed_s, per_request_s, d, limits)
        busy = d.requests_per_s * prompt_s + steps_per_s * (fixed_s + per_request_s * knee) / knee
        return Sizing(max(engines, math.ceil(busy / FULL)), 1.0, met=False)
    while engines < MOST and not _mixed_fits(d, lines, limits, t, engines):
        engines += 1
    return Sizing(engines, (d.requests_per_s * prompt_s + steps_per_s * per_request_s) / engines)


def _knee(fixed_s: float, per_request_s: float, d: Demand, limits: EngineLimits) -> float:
    """The batch of the best ratio of throughput to latency: where its requests cost as much as the empty iteration.

    For an SLA that no batch meets: more engines hardly help one request, and fewer make it far worse (power, Kleinrock
    1979: b / (f + p b)^2 is largest at b = f / p).
    """
    most = max(1.0, min(limits.max_num_seqs, limits.max_kv_tokens / max(1.0, d.context)))
    return most if per_request_s <= 0 else min(most, max(1.0, fixed_s / per_request_s))


def _decode_prices(line: Line, context: float) -> tuple[float, float]:
    """Seconds of an empty iteration, and of each request of that context in it."""
    few, many = line.at(0.0, 1.0, context), line.at(0.0, 101.0, 101.0 * context)
    per_request_s = (many - few) / 100.0
    return few - per_request_s, per_request_s


def _crowd(batch: float, step_s: float, t: Targets, d: Demand) -> float:
    """A batch that only `late_share` of requests find more crowded, on average over their own stay.

    The number in decode varies like arrivals over one stay, more so where contexts are unequal; and a request feels
    its average over the stay, of `FELT` times that variance.
    """
    stay_s = step_s * d.osl / d.accept_length
    unequal = 1.0 + d.isl_cv2 * (d.isl / max(1.0, d.context)) ** 2
    variance = max(1.0, batch) * d.dispersion_over(stay_s) * unequal * FELT
    return max(0.0, batch + t.deviations * math.sqrt(variance))


def _batch_fits(
    steps_per_s: float, fixed_s: float, per_request_s: float, d: Demand, limits: EngineLimits, t: Targets
) -> bool:
    busy = steps_per_s * per_request_s
    if busy >= FULL:
        return False
    step_s = fixed_s / (1.0 - busy)
    crowd = _crowd(steps_per_s * step_s, step_s, t, d)
    if crowd > limits.max_num_seqs or crowd * d.context > limits.max_kv_tokens:
        return False
    return fixed_s + per_request_s * crowd <= t.itl_s * d.accept_length


def _mixed_fits(d: Demand, lines: AggLines, limits: EngineLimits, t: Targets, engines: int) -> bool:
    rate = d.requests_per_s / engines
    fixed_s, per_request_s = _decode_prices(lines.decode, d.context)
    prompt_s = lines.prompt_s(d.prompt, d.context, limits)
    steps_per_s = rate * d.osl / d.accept_length
    prefill_busy, decode_busy = rate * prompt_s, steps_per_s * per_request_s
    if prefill_busy + decode_busy >= FULL:
        return False
    step_s = fixed_s / (1.0 - prefill_busy - decode_busy)  # an average iteration, with its share of prompts
    crowd = _crowd(steps_per_s * step_s, step_s, t, d)
    if crowd >= min(limits.max_num_seqs, limits.max_num_batched_tokens) or crowd * d.context > limits.max_kv_tokens:
        return False
    crowded_s = (fixed_s + per_request_s * crowd) / (1.0 - prefill_busy)
    own_s = prompt_s + crowded_s  # and what the batch does meanwhile
    late = _late(d, engines, prompt_s, t.ttft_s - own_s)
    return crowded_s <= t.itl_s * d.accept_length and own_s < t.ttft_s and late <= t.late_share
