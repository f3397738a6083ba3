"""Metrics pages of made-up frontends."""

from collections.abc import Mapping
from typing import Any

Observed = tuple[Any, ...]  # count, sum, and the cumulative buckets where there are any

_NAMES = {
    "isl": "input_sequence_tokens",
    "osl": "output_sequence_tokens",
    "ttft": "time_to_first_token_seconds",
    "itl": "inter_token_latency_seconds",
}


def page(
    *,
    model: str = "tiny",
    started: Any = 0,
    completed: Any = None,
    isl: Observed | None = (0, 0),
    osl: Observed | None = (0, 0),
    ttft: Observed | None = (0, 0),
    itl: Observed | None = (0, 0),
    hits: Mapping[str, Observed] | None = None,
    process: str | None = None,
    uptime: float | None = None,
) -> bytes:
    """A page as Dynamo 1.4.2 writes it; None leaves a metric out. `started` may be per (endpoint, request type)."""
    lines = ["dynamo_frontend_disconnected_clients 0"]
    for (endpoint, kind), value in _by_type(started).items():
        labels = f'endpoint="{endpoint}",model="{model}",request_type="{kind}"'
        lines.append(f"dynamo_frontend_requests_started_total{{{labels}}} {value}")
    if completed is not None:
        lines.append(
            f'dynamo_frontend_requests_total{{endpoint="completions",model="{model}",status="success"}} {completed}'
        )
    for field, observed in {"isl": isl, "osl": osl, "ttft": ttft, "itl": itl}.items():
        if observed is not None:
            lines.extend(_histogram(f"dynamo_frontend_{_NAMES[field]}", f'model="{model}"', observed))
    for namespace, observed in (hits or {}).items():
        lines.extend(_histogram("dynamo_component_router_kv_hit_rate", f'dynamo_namespace="{namespace}"', observed))
    if uptime is not None:
        lines.append(f'dynamo_component_uptime_seconds{{worker_id="{process or "1"}"}} {uptime}')
    return ("\n".join(lines) + "\n").encode()


def _by_type(started: Any) -> dict[tuple[str, str], Any]:
    if started is None:
        return {}
    return dict(started) if isinstance(started, Mapping) else {("completions", "stream"): started}


def _histogram(name: str, labels: str, observed: Observed) -> list[str]:
    count, total, *rest = observed
    buckets: Mapping[float, Any] = rest[0] if rest else {}
    lines = [f'{name}_bucket{{{labels},le="{bound}"}} {value}' for bound, value in buckets.items()]
    if buckets:
        lines.append(f'{name}_bucket{{{labels},le="+Inf"}} {count}')
    return [*lines, f"{name}_sum{{{labels}}} {total}", f"{name}_count{{{labels}}} {count}"]
