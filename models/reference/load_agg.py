"""Engines that prefill and decode at once: two opinions about one count."""

from collections.abc import Sequence

from headrace.models.reference.decision import REFUSED, Sub
from headrace.models.reference.load_sla import UNKNOWN, Judged, Question, fewer, fits_beside, judge, largest, ms
from headrace.models.reference.perf import Asked
from headrace.models.reference.state import State
from headrace.schemas.base import AGG
from headrace.schemas.fpm import Fpm
from headrace.schemas.reasons import Reason


def aggregated(state: State, engines: Sequence[Fpm], ready: int) -> Judged:
    if not state.models[AGG].ready or ready <= 0:
        return Judged(UNKNOWN)
    p, ttft_ms = _prefill(state, engines, ready)
    d, itl_ms = _decode(state, engines, ready)
    return Judged(_both(p, d, ready), ttft_ms, itl_ms)


def _both(p: Sub, d: Sub, ready: int) -> Sub:
    """Either may ask for more; only both together for less, or decode alone where prefill is unknown."""
    # A refusal is a wish to stay.
    pn, dn = (ready if s.replicas is None and s.reason is REFUSED else s.replicas for s in (p, d))
    refused = REFUSED in (p.reason, d.reason)
    if pn is not None and pn > ready:
        return Sub(pn, Reason.SCALE_UP)
    if dn is not None and dn > ready:
        return Sub(dn, Reason.SCALE_UP)
    if dn is not None and dn < ready and (pn is None or pn < ready):
        return Sub(dn if pn is None else max(pn, dn), Reason.SCALE_DOWN)
    return Sub(ready, REFUSED if refused else Reason.NO_CHANGE)


def _prefill(state: State, engines: Sequence[Fpm], ready: int) -> tuple[Sub, float | None]:
    if not (state.engine(AGG).max_num_batched_tokens or 0) > 0:
        return UNKNOWN, None
    model, settings, hit, more = state.models[AGG], state.settings, state.kv_hit_rate, fewer(ready)

    def fits(fpm: Fpm) -> bool | None:
        own, post = (
            ms(model.ttft_s(fpm, Asked(hit, scale, more, include_queued_decode=True))) for scale in (0.0, more)
        )
        return fits_beside(own, post, settings)

    estimates = [ms(model.ttft_s(fpm, Asked(kv_hit_rate=hit))) for fpm in engines]
    return judge(estimates, engines, Question(ready, settings.ttft_ms, fits, settings.min_endpoint)), largest(estimates)


def _decode(state: State, engines: Sequence[Fpm], ready: int) -> tuple[Sub, float | None]:
    model, settings, more = state.models[AGG], state.settings, fewer(ready)
    room = state.engine(AGG).max_kv_tokens or 0

    def itl_ms(fpm: Fpm, asked: Asked) -> float | None:
        found = ms(model.itl_s(fpm, asked))
        return None if found is None else found / state.accepted

    def fits(fpm: Fpm) -> bool | None:
        s, q = fpm.scheduled_requests, fpm.queued_requests
        held = s.sum_decode_kv_tokens + q.sum_decode_kv_tokens + q.sum_prefill_tokens
        if room > 0 and int(held * more) >= room:
            return False
        post = itl_ms(fpm, Asked(decode_scale=more, include_queued_prefill_as_kv=True))
        return None if post is None else post < settings.itl_ms * settings.sensitivity

    estimates = [itl_ms(fpm, Asked()) for fpm in engines]
    return judge(estimates, engines, Question(ready, settings.itl_ms, fits, settings.min_endpoint)), largest(estimates)
