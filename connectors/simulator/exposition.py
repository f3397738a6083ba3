"""The text of Dynamo's frontend `/metrics`: its names, labels, bucket bounds and help."""

from headrace.connectors.simulator.frontend import Frontend
from headrace.connectors.simulator.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "dynamo_frontend_"


def render(frontend: Frontend, model: str) -> str:
    """All series of one model. Counters appear after their first request, as they do in Dynamo."""
    label = f'model="{_escaped(model)}"'
    started = f'endpoint="chat_completions",{label},request_type="stream"'
    ok = f'endpoint="chat_completions",error_type="",{label},request_type="stream",status="success"'
    bad = f'endpoint="chat_completions",error_type="validation",{label},request_type="stream",status="error"'
    f = frontend
    return "".join(
        [
            _gauge("active_requests", "Number of requests currently being handled by the frontend", label, f.inflight),
            _histogram("cached_tokens", "Number of cached tokens (prefix cache hits) per request", label, f.cached),
            _gauge("inflight_requests", "Number of inflight requests", label, f.inflight),
            _histogram("input_sequence_tokens", "Input sequence length in tokens", label, f.isl),
            _histogram("inter_token_latency_seconds", "Inter-token latency in seconds", label, f.itl),
            _histogram("output_sequence_tokens", "Output sequence length in tokens", label, f.osl),
            _counter("output_tokens_total", "Total number of output tokens generated", {label: f.output_tokens}),
            _gauge("queued_requests", "Number of requests before their first token", label, f.queued),
            _histogram("request_duration_seconds", "Duration of LLM requests", label, f.duration),
            _counter("requests_started_total", "Total number of LLM requests accepted", {started: f.started}),
            _counter("requests_total", "Total number of LLM requests processed", {ok: f.succeeded, bad: f.errors}),
            _histogram("time_to_first_token_seconds", "Time to first token in seconds", label, f.ttft),
        ]
    )


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP {_PREFIX}{name} {text}\n# TYPE {_PREFIX}{name} {kind}\n"


def _gauge(name: str, text: str, label: str, value: float) -> str:
    return f"{_head(name, text, 'gauge')}{_PREFIX}{name}{{{label}}} {_number(value)}\n"


def _counter(name: str, text: str, series: dict[str, int]) -> str:
    lines = [f"{_PREFIX}{name}{{{labels}}} {value}\n" for labels, value in series.items() if value]
    return _head(name, text, "counter") + "".join(lines) if lines else ""


def _histogram(name: str, text: str, label: str, h: Histogram) -> str:
    lines = [_head(name, text, "histogram")]
    below = 0
    for bound, count in zip([*map(_number, h.bounds), "+Inf"], h.counts, strict=True):
        below += count
        lines.append(f'{_PREFIX}{name}_bucket{{{label},le="{bound}"}} {below}\n')
    lines.append(f"{_PREFIX}{name}_sum{{{label}}} {_number(h.sum)}\n{_PREFIX}{name}_count{{{label}}} {h.count}\n")
    return "".join(lines)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
