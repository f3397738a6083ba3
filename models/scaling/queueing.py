"""How many engines keep the SLA for most requests when arrivals are random: waiting for prefill, crowding in decode.

Waiting: an engine is a queue G/G/1. At utilisation r = rate x E[S] a request waits with probability r, and if it does,
for E[S] (ca2 + cs2) / 2 / (1 - r) seconds on average; the wait is taken as exponential. E[S] and cs2 are those of the
time of a prompt over the lengths that were measured (`models/scaling/mix.py`). Sources: Kingman 1962; Allen and
Cunneen, in Hall, Queueing Methods, 1991. Engines do not share a queue: a router that takes them in turn gives each
every Nth request, which evens arrivals of dispersion I out (ca2 = I/N) but pools nothing.

Crowding: requests in decode vary around Little's mean like arrivals over one stay, so a batch of b on average is now
and then b + z sqrt(I b): the square-root rule of staffing (Halfin and Whitt 1981). Iteration time rises with the batch,
and the batch with iteration time, so the mean is the fixed point of both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist

from headrace.models.perf.latency import EngineLimits, cached_share
from headrace.models.perf.line import FLOOR_S, Line
from headrace.models.scaling.mix import UNKNOWN, Mix, Service, chunked

MOST = 100_000  # engines
FELT = (
    2.0 / math.e
)  # variance that the mean over one stay keeps where correlation decays over one: 2 (x - 1 + e^-x), x = 1
SPILL = NormalDist().inv_cdf(0.99)  # deviations of the KV that is held, above which a cache may be full
FULL = 0.98  # utilisation above which a queue has no useful steady state
ALL = 1.0 - 1e-9  # a share that is everything but for rounding


@dataclass(frozen=True, slots=True)
class Demand:
    """What must be served: arrivals in requests/s, mean lengths in tokens, and how unequal both are.

    `mix` is how unequal prompts are, exponential where it is unknown; `osl_cv2` is the squared coefficient of variation
    of answers, 0 where it is. `held` are the KV tokens that a decoding request was seen to hold on average, None where
    no engine has said. `dispersion` is the variance over the mean of the arrivals in `dispersion_s` seconds: 1 for a
    Poisson stream, more for bursts.
    """

    requests_per_s: float
    isl: float
    osl: float
    mix: Mix = UNKNOWN
    osl_cv2: float = 0.0
    held: float | None = None
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
        """KV tokens that a decoding request holds on average: `held`, else what lengths alone tell.

        Whoever looks into a batch finds long answers more often, each by its length: E[osl^2] / E[osl], half of it done
        (the inspection paradox; Feller II, 1971). Whether long prompts have long answers only engines can tell.
        """
        return self.isl + self.osl * (1.0 + self.osl_cv2) / 2.0 if self.held is None else self.held

    def service(self, time_s: Callable[[float], float]) -> Service:
        """The time of prompts, cache hits taken off alike; `time_s` is that of one with so many tokens to compute."""
        return Service.of(self.mix, self.prompt, time_s)


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
    """How many engines, and what one of them would then look like. `met` is false where no number meets the SLA.

    `out_of_reach` is the share of prompts that miss the TTFT target when they are alone: `engines` are for the rest.
    """

    engines: int
    utilisation: float
    met: bool = True
    out_of_reach: float = 0.0


def late_share(arrivals_per_s: float, service_s: float, variability: float, slack_s: float) -> float:
    """The share of one engine's requests that wait longer than `slack_s`; `variability` is (ca2 + cs2) / 2.

    1 when it is overloaded.
    """
    busy = arrivals_per_s * service_s
    if busy >= FULL:
        return 1.0
    if busy <= 0:
        return 0.0
    if variability <= 0:  # as regular as clockwork: nobody waits
        return 0.0
    mean_wait_s = service_s * variability / (1.0 - busy)
    return busy * math.exp(-max(0.0, slack_s) / mean_wait_s)


def prefill_service(d: Demand, line: Line, limits: EngineLimits) -> Service:
    """The time of prompts on a prefill engine that does nothing else."""
    return d.service(lambda tokens: chunked(tokens, limits.max_num_batched_tokens, line.at))


def prefill_engines(d: Demand, service: Service, t: Targets, backlog_per_s: float = 0.0) -> Sizing:
    """Prefill engines for which at most `late_share` of the prompts that can meet the TTFT target miss it.

    `backlog_per_s` are requests/s on top, to work off what has queued up; they count as load, not as randomness. What
    is out of reach is work all the same. Where that is everything, more engines only keep the queue from growing.
    """
    lost = service.out_of_reach(t.ttft_s)
    load = (d.requests_per_s + backlog_per_s) * service.mean_s
    if lost >= ALL:
        engines = max(1, math.ceil(load / FULL))
        return Sizing(engines, d.requests_per_s * service.mean_s / engines, met=False, out_of_reach=1.0)
    engines = max(1, math.ceil(load))
    while engines < MOST and _late(d, engines, service, t.ttft_s) > t.late_share:
        engines += 1
    return Sizing(engines, d.requests_per_s * service.mean_s / engines, lost <= t.late_share, lost)


def _late(d: Demand, engines: int, service: Service, target_s: float) -> float:
    """Share of those within reach that is late; bursts count while an engine's queue remembers, E[S] / (1 - r)^2."""
    per_engine = d.requests_per_s / engines
    idle = 1.0 - per_engine * service.mean_s
    if idle <= 1.0 - FULL:
        return 1.0
    variability = (d.dispersion_over(service.mean_s / idle**2) / engines + service.cv2) / 2.0
    return service.late(target_s, lambda slack_s: late_share(per_engine, service.mean_s, variability, slack_s))


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
        alone_s = self.decode.at(0.0, 1.0, context)
        return chunked(
            prompt,
            limits.max_num_batched_tokens,
            lambda tokens: max(FLOOR_S, self.mixed.at(tokens, 1.0, context) - alone_s),
        )


def agg_service(d: Demand, lines: AggLines, limits: EngineLimits) -> Service:
    """The time that prompts take away from decoding on an aggregated engine."""
    return d.service(lambda tokens: lines.prompt_s(tokens, d.context, limits))


def agg_engines(d: Demand, lines: AggLines, limits: EngineLimits, t: Targets, backlog_per_s: float = 0.0) -> Sizing:
    """Aggregated engines: prompts interrupt the batch that decodes, and both targets must hold.

    A request's mean time between tokens is its decode iterations, stretched by the share of time that prompts take.
    """
    service = agg_service(d, lines, limits)
    fixed_s, per_request_s = _decode_prices(lines.decode, d.context)
    steps_per_s = d.requests_per_s * d.osl / d.accept_length
    engines = max(1, math.ceil((d.requests_per_s + backlog_per_s) * service.mean_s))
    lost = service.out_of_reach(t.ttft_s - fixed_s - per_request_s)  # with the iteration that it comes in
    if fixed_s + per_request_s > t.itl_s * d.accept_length or lost >= ALL:
        knee = _knee(fixed_s, per_request_s, d, limits)
        busy = d.requests_per_s * service.mean_s + steps_per_s * (fixed_s + per_request_s * knee) / knee
        return Sizing(max(engines, math.ceil(busy / FULL)), 1.0, met=False, out_of_reach=lost)
    while engines < MOST and not _mixed_fits(d, lines.decode, service, limits, t, engines):
        engines += 1
    busy = d.requests_per_s * service.mean_s + steps_per_s * per_request_s
    return Sizing(engines, busy / engines, lost <= t.late_share, lost)


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
    """A batch that only `late_share` of requests find more crowded, on average over their own stay: `FELT` of it."""
    return max(0.0, batch + t.deviations * math.sqrt(FELT * _variance(batch, step_s, d)))


def _variance(batch: float, step_s: float, d: Demand) -> float:
    """Of the KV tokens in a batch, in requests of mean context squared.

    The number in decode varies like arrivals over one stay, and the sum of unequal contexts by 1 + cv2 more than their
    number (a compound Poisson variable has variance N E[c^2]).
    """
    unequal = 1.0 + d.mix.cv2 * (d.isl / max(1.0, d.context)) ** 2
    return max(1.0, batch) * d.dispersion_over(step_s * d.osl / d.accept_length) * unequal


def _kv_fits(batch: float, step_s: float, d: Demand, limits: EngineLimits, t: Targets) -> bool:
    """Is the cache full at hardly any moment (`SPILL`)?

    One that is full stops everybody who comes, prompts too, and for as long as its requests stay: unlike the time of
    iterations it is neither averaged over a stay nor a matter of the few who may be late. Bursts count as everywhere:
    a jump looks like a burst, and must not ask for caches that hold fifty times its noise.
    """
    calm = SPILL * math.sqrt(_variance(batch, step_s, replace(d, dispersion=1.0)))
    full = batch + max(calm, t.deviations * math.sqrt(_variance(batch, step_s, d)))
    return full * d.context <= limits.max_kv_tokens or batch <= 1.0


def _batch_fits(
    steps_per_s: float, fixed_s: float, per_request_s: float, d: Demand, limits: EngineLimits, t: Targets
) -> bool:
    busy = steps_per_s * per_request_s
    if busy >= FULL:
        return False
    step_s = fixed_s / (1.0 - busy)
    crowd = _crowd(steps_per_s * step_s, step_s, t, d)
    if crowd > limits.max_num_seqs or not _kv_fits(steps_per_s * step_s, step_s, d, limits, t):
        return False
    return fixed_s + per_request_s * crowd <= t.itl_s * d.accept_length


def _mixed_fits(d: Demand, decode: Line, service: Service, limits: EngineLimits, t: Targets, engines: int) -> bool:
    rate = d.requests_per_s / engines
    fixed_s, per_request_s = _decode_prices(decode, d.context)
    steps_per_s = rate * d.osl / d.accept_length
    prefill_busy, decode_busy = rate * service.mean_s, steps_per_s * per_request_s
    if prefill_busy + decode_busy >= FULL:
        return False
    step_s = fixed_s / (1.0 - prefill_busy - decode_busy)  # an average iteration, with its share of prompts
    crowd = _crowd(steps_per_s * step_s, step_s, t, d)
    if crowd >= min(limits.max_num_seqs, limits.max_num_batched_tokens) or not _kv_fits(
        steps_per_s * step_s, step_s, d, limits, t
    ):
        return False
    crowded_s = (fixed_s + per_request_s * crowd) / (1.0 - prefill_busy)
    # A prompt waits for others, and for the batch that decodes meanwhile.
    return crowded_s <= t.itl_s * d.accept_length and _late(d, engines, service, t.ttft_s - crowded_s) <= t.late_share
