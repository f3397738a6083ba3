"""What the estimates of the engines of one role ask for, under an SLA."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.models.reference.decision import REFUSED, Sub
from headrace.models.reference.perf import Asked
from headrace.models.reference.settings import Settings
from headrace.models.reference.state import State
from headrace.schemas.base import DECODE, PREFILL
from headrace.schemas.fpm import Fpm
from headrace.schemas.reasons import Reason

UNKNOWN = Sub(None, Reason.INSUFFICIENT_DATA)


@dataclass(frozen=True, slots=True)
class Judged:
    """What is asked for, and the largest estimates that it was made of, ms."""

    sub: Sub
    ttft_ms: float | None = None
    itl_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """`fits`: may one engine's load be taken by fewer? None where that is unknown."""

    ready: int
    target_ms: float
    fits: Callable[[Fpm], bool | None]
    min_endpoint: int


def fewer(ready: int) -> float:
    """How much more each of the survivors gets when one of `ready` goes."""
    return ready / (ready - 1) if ready > 1 else 1.0


def judge(estimates_ms: Sequence[float | None], engines: Sequence[Fpm], question: Question) -> Sub:
    """Up where every engine misses the target, down where each one's load fits on fewer."""
    known = [e for e in estimates_ms if e is not None]
    if not known:
        return UNKNOWN
    ready = question.ready
    if all(e > question.target_ms for e in known):
        return Sub(ready + 1, Reason.SCALE_UP)
    refused = False
    if ready > 1:
        fits = True
        for engine in engines:
            found = question.fits(engine)
            refused = refused or found is False
            fits = fits and found is True
            if not fits:
                break
        if fits:
            return Sub(max(ready - 1, question.min_endpoint), Reason.SCALE_DOWN)
    return Sub(None, REFUSED if refused else Reason.NO_CHANGE)


def largest(estimates: Sequence[float | None]) -> float | None:
    return max((e for e in estimates if e is not None), default=None)


def ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000.0 * seconds


def fits_beside(own_ms: float | None, post_ms: float | None, settings: Settings) -> bool | None:
    """Is what a prompt would wait, after one engine has gone, within what its own prefill leaves of the target?"""
    if own_ms is None:
        return None
    room = (settings.ttft_ms - own_ms) * settings.sensitivity
    if room <= 0:
        return False
    return None if post_ms is None else post_ms - own_ms < room


def prefill(state: State, engines: Sequence[Fpm], ready: int) -> Judged:
    model, settings, hit = state.models[PREFILL], state.settings, state.kv_hit_rate
    if not (state.engine(PREFILL).max_num_batched_tokens or 0) > 0 or not model.ready or ready <= 0:
        return Judged(UNKNOWN)
    more = fewer(ready)

    def fits(fpm: Fpm) -> bool | None:
        own, post = (ms(model.ttft_s(fpm, Asked(kv_hit_rate=hit, queue_scale=scale))) for scale in (0.0, more))
        return fits_beside(own, post, settings)

    estimates = [ms(model.ttft_s(fpm, Asked(kv_hit_rate=hit))) for fpm in engines]
    question = Question(ready, settings.ttft_ms, fits, settings.min_endpoint)
    return Judged(judge(estimates, engines, question), ttft_ms=largest(estimates))


def decode(state: State, engines: Sequence[Fpm], ready: int) -> Judged:
    model, settings = state.models[DECODE], state.settings
    if not model.ready or ready <= 0:
        return Judged(UNKNOWN)
    more, room = fewer(ready), state.engine(DECODE).max_kv_tokens or 0

    def itl_ms(fpm: Fpm, scale: float) -> float | None:
        found = ms(model.itl_s(fpm, Asked(decode_scale=scale)))
        return None if found is None else found / state.accepted

    def fits(fpm: Fpm) -> bool | None:
        held = fpm.scheduled_requests.sum_decode_kv_tokens + fpm.queued_requests.sum_decode_kv_tokens
        if room > 0 and int(held * more) >= room:
            return False
        post = itl_ms(fpm, more)
        return None if post is None else post < settings.itl_ms * settings.sensitivity

    estimates = [itl_ms(fpm, 1.0) for fpm in engines]
    question = Question(ready, settings.itl_ms, fits, settings.min_endpoint)
    return Judged(judge(estimates, engines, question), itl_ms=largest(estimates))
