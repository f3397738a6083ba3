"""The three engines whose answers the reference was asked for: prefill A, decode B, aggregated C."""

from typing import Any

from headrace.models.reference.settings import Engine, Pool, Seen, Settings
from headrace.models.reference.state import State
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests

ENGINE = Engine(num_gpu=1, max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=100_000, context_length=1000)
BATCHES = ((1, 500), (4, 3000), (8, 9000), (16, 15000), (32, 40000), (64, 60000))  # requests, tokens
PROMPTS = (100, 500, 1000, 1500, 2000)


def iteration(p: int = 0, num_p: int = 0, n: int = 0, kv: int = 0, wall_ms: float = 0.0) -> Fpm:
    return Fpm(
        wall_time=wall_ms / 1000,
        scheduled_requests=ScheduledRequests(
            num_prefill_requests=num_p, sum_prefill_tokens=p, num_decode_requests=n, sum_decode_kv_tokens=kv
        ),
    )


def learned(role: Role) -> list[Fpm]:
    if role == PREFILL:
        return [iteration(p, 1, wall_ms=10 + 0.02 * p) for p in PROMPTS]
    if role == DECODE:
        return [iteration(n=n, kv=kv, wall_ms=5 + 0.05 * n + 0.0001 * kv) for n, kv in BATCHES]
    prompts = ((100, 1), (500, 1), (1000, 1), (1500, 2), (2000, 2), (300, 1))
    return [
        iteration(p, r, n, kv, 5 + 0.02 * p + 0.0001 * kv) for (p, r), (n, kv) in zip(prompts, BATCHES, strict=True)
    ]


def load(worker: str = "w", *, queue: int = 0, requests: int = 0, n: int = 0, kv: int = 0, queued_kv: int = 0) -> Fpm:
    """What an engine has in front of it: prompt tokens and requests queued, decodes scheduled and queued."""
    return Fpm(
        worker_id=worker,
        scheduled_requests=ScheduledRequests(num_decode_requests=n, sum_decode_kv_tokens=kv),
        queued_requests=QueuedRequests(
            num_prefill_requests=requests or (queue > 0),
            sum_prefill_tokens=queue,
            num_decode_requests=2 if queued_kv else 0,
            sum_decode_kv_tokens=queued_kv,
        ),
    )


def make_state(mode: str, *, taught: bool = True, **more: Any) -> State:
    """A planner that knows its engines, and their speed where it was `taught`."""
    settings = Settings(mode=mode, **{"optimization_target": "sla", "max_gpu_budget": -1, **more})
    state = State(settings, dict.fromkeys(settings.roles, ENGINE))
    if taught:
        for role, model in state.models.items():
            model.bootstrap(learned(role))
    return state


def prefill_seen(ready: int, queues: list[int]) -> Seen:
    fpms = [load(f"p{i}", queue=q) for i, q in enumerate(queues)]
    return Seen({PREFILL: Pool(ready, ready)}, {PREFILL: fpms})


def decode_seen(ready: int, kv: list[int]) -> Seen:
    fpms = [load(f"d{i}", n=-(-k // 1000), kv=k) for i, k in enumerate(kv)]
    return Seen({DECODE: Pool(ready, ready)}, {DECODE: fpms})


def both_seen(prefill: list[int], decode: list[int]) -> Seen:
    p, d = prefill_seen(len(prefill), prefill), decode_seen(len(decode), decode)
    return Seen({**p.pools, **d.pools}, {**p.fpms, **d.fpms})


def agg_seen(kv: list[int], queue: int = 0) -> Seen:
    fpms = [load(f"a{i}", n=-(-k // 1000), kv=k, queue=queue) for i, k in enumerate(kv)]
    return Seen({AGG: Pool(len(kv), len(kv))}, {AGG: fpms})
