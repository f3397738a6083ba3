"""What the next request would wait for its first token, and what a decoding request waits between two.

Pure functions of a model and of what one engine has in front of it. Source: reference-semantics 3.5; the order of the
floating-point operations and the rounding up to whole tokens and requests are the reference's.
"""

import math
from dataclasses import dataclass, replace

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.line import Line
from headrace.models.perf.speed import line_for
from headrace.schemas.base import AGG, DECODE, PREFILL, Role

HIGHEST_KV_HIT = 0.95  # some of every prompt is computed


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What one engine (one rank) has queued and scheduled, in requests and tokens; decode tokens are context length."""

    queued_prefill_requests: float = 0.0
    queued_prefill_tokens: float = 0.0
    scheduled_prefill_requests: float = 0.0
    scheduled_prefill_tokens: float = 0.0
    scheduled_decode_requests: float = 0.0
    scheduled_decode_kv_tokens: float = 0.0
    queued_decode_requests: float = 0.0
    queued_decode_kv_tokens: float = 0.0

    def admitted(self) -> "EngineLoad":
        """This load once the requests that wait to decode have been let in."""
        return replace(
            self,
            scheduled_decode_requests=self.scheduled_decode_requests + self.queued_decode_requests,
            scheduled_decode_kv_tokens=self.scheduled_decode_kv_tokens + self.queued_decode_kv_tokens,
            queued_decode_requests=0.0,
            queued_decode_kv_tokens=0.0,
        )

    def prefilled(self) -> "EngineLoad":
        """This load once its waiting prompts are computed: they wait to decode, their tokens are context."""
        return replace(
            self,
            queued_decode_requests=self.queued_decode_requests + self.queued_prefill_requests,
            queued_decode_kv_tokens=self.queued_decode_kv_tokens + self.queued_prefill_tokens,
            queued_prefill_requests=0.0,
            queued_prefill_tokens=0.0,
        )

    def scaled(self, *, queue: float = 1.0, decode: float = 1.0) -> "EngineLoad":
        """This load with `queue` times the waiting prefill and `decode` times the decode, waiting or running."""
        return replace(
            self,
            queued_prefill_requests=self.queued_prefill_requests * queue,
            queued_prefill_tokens=self.queued_prefill_tokens * queue,
            scheduled_decode_requests=self.scheduled_decode_requests * decode,
            scheduled_decode_kv_tokens=self.scheduled_decode_kv_tokens * decode,
            queued_decode_requests=self.queued_decode_requests * decode,
            queued_decode_kv_tokens=self.queued_decode_kv_tokens * decode,
        )


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine admits; the defaults stand for what it has not said (reference-semantics 3.5)."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 512
    max_kv_tokens: int = 2_000_000


def cached_share(kv_hit_rate: float | None) -> float:
    """The share of prompt tokens that need no computing: `kv_hit_rate` within 0 and 0.95; 0 where it is unknown."""
    if kv_hit_rate is None or not math.isfinite(kv_hit_rate):
        return 0.0
    return min(HIGHEST_KV_HIT, max(0.0, kv_hit_rate))


def acceptance(accept_length: float) -> float:
    """Tokens per decode iteration and request: `accept_length`, at least 1."""
    return accept_length if math.isfinite(accept_length) and accept_length > 1.0 else 1.0


def ttft_s(
    model: EngineModel,
    role: Role,
    load: EngineLoad,
    limits: EngineLimits,
    *,
    kv_hit_rate: float | None = None,
    add_next_request: bool = True,
) -> float | None:
    """Seconds until this engine has worked off its prefill queue and, with `add_next_request`, one more typical prompt.

    The work is cut into chunks of `max_num_batched_tokens`; on an aggregated engine each chunk runs beside the decode
    load that is scheduled (`EngineLoad.admitted` schedules what waits). 0.0 where there is no work; None for a decode
    engine, or where the model cannot tell.
    """
    if role == DECODE or limits.max_num_batched_tokens < 1:
        return None
    tokens = load.queued_prefill_tokens
    if add_next_request:
        isl = model.mean_isl
        if isl is None:
            return None  # no prompt was ever seen: unknown, not 0
        tokens += isl
    tokens = _whole(tokens * (1.0 - cached_share(kv_hit_rate)))
    if tokens == 0:
        return 0.0
    requests, kv = (0.0, 0.0)
    if role == AGG:
        requests, kv = _whole(load.scheduled_decode_requests), _whole(load.scheduled_decode_kv_tokens)
    line = line_for(model, role, prefill=True, decode=requests > 0 or kv > 0)
    return None if line is None else _chunked(line, tokens, limits.max_num_batched_tokens, requests, kv)


def itl_s(
    model: EngineModel,
    role: Role,
    load: EngineLoad,
    *,
    accept_length: float = 1.0,
    add_next_request: bool = True,
) -> float | None:
    """Mean seconds between two tokens of a request on this engine, with one more typical request if `add_next_request`.

    All decode counts, running and waiting. An aggregated engine is taken to prefill as much per iteration as it does on
    average while it decodes. 0.0 where nothing decodes; None for a prefill engine, or where the model cannot tell.
    """
    if role == PREFILL:
        return None
    requests = load.scheduled_decode_requests + load.queued_decode_requests
    kv = load.scheduled_decode_kv_tokens + load.queued_decode_kv_tokens
    if add_next_request:
        length = model.mean_decode_length
        if length is None:
            return None  # no context was ever seen: unknown, not 0
        requests, kv = requests + 1.0, kv + length
    requests, kv = _whole(requests), _whole(kv)
    if requests == 0 and kv == 0:
        return 0.0
    prefill = _whole(model.mean_prefill_tokens or 0.0) if role == AGG else 0.0
    line = line_for(model, role, prefill=prefill > 0, decode=True)
    return None if line is None else line.at(prefill, requests, kv) / acceptance(accept_length)


def _whole(amount: float) -> float:
    return float(max(0, math.ceil(amount)))


def _chunked(line: Line, tokens: float, chunk: int, requests: float, kv: float) -> float:
    """Seconds for `tokens` in chunks of `chunk`, the last one smaller."""
    full, tail = divmod(tokens, chunk)
    time = full * line.at(chunk, requests, kv) if full else 0.0
    return time + line.at(tail, requests, kv) if tail else time
