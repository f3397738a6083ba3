"""What one frontend's `/metrics` page says about one model: arrivals, completions, lengths, latencies, cache hits.

Metric names and labels: Dynamo 1.4.2. Values are running totals since the process began; `counters.py` makes
differences.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.connectors.sources.counters import Histogram, is_count, is_sum
from headrace.connectors.sources.prom_text import Labels, Page, mentions, parse
from headrace.schemas.errors import RecordError

FIELDS = {  # of a TrafficWindow -> the frontend's histogram
    "isl": "input_sequence_tokens",
    "osl": "output_sequence_tokens",
    "ttft_s": "time_to_first_token_seconds",
    "itl_s": "inter_token_latency_seconds",
    "duration_s": "request_duration_seconds",
}
KV_HIT_RATE = "kv_hit_rate"
_KV_FAMILY = "dynamo_component_router_kv_hit_rate"
_UPTIME = "dynamo_component_uptime_seconds"
_SHOWN_NAMES = 10

Histograms = dict[Labels, Histogram]


@dataclass(frozen=True, slots=True)
class Selector:
    """Which series count.

    `model` None means all models; its case does not matter. `namespace` is Dynamo's and selects among the router's
    series. `prefix` is what the frontends' metric names begin with.
    """

    model: str | None = None
    namespace: str | None = None
    prefix: str = "dynamo_frontend"


@dataclass(frozen=True, slots=True)
class Reading:
    """One page. `unreadable` says which fields it does not tell, and why.

    `histograms` lacks the fields that are no numbers, and has no series for those that have none.
    """

    process: str | None  # id of the process that answered, where it says so
    uptime_s: float | None
    started: dict[Labels, float] | None  # None: this frontend counts completions only
    completed: dict[Labels, float]
    histograms: dict[str, Histograms]
    unreadable: dict[str, str]

    @property
    def arrivals(self) -> dict[Labels, float]:
        return self.completed if self.started is None else self.started


def read_page(body: bytes, selector: Selector) -> Reading:
    """Read a page.

    Raises RecordError when the arrivals cannot be known from it: `undecodable` (no metrics page, or none of a
    frontend), `not_a_number` (a request counter shows NaN, infinity or less than zero), `unknown_model` (it serves
    others only).
    """
    page = parse(body, _families(selector.prefix))
    if not mentions(body, selector.prefix + "_"):
        raise RecordError(
            f"page of {len(body)} bytes has no {selector.prefix}_ metrics (it begins with {body[:40]!r}): "
            "is this the /metrics address of a frontend?",
            reason="undecodable",
        )
    _check_model(page, selector)
    started = _counter(page, f"{selector.prefix}_requests_started_total", selector)
    completed = _counter(page, f"{selector.prefix}_requests_total", selector)
    histograms: dict[str, Histograms] = {}
    unreadable: dict[str, str] = {}
    for field, name in FIELDS.items():
        _take(page, field, f"{selector.prefix}_{name}", selector, histograms, unreadable)
        if not histograms.get(field, True) and sum(completed.values()) > 0:
            unreadable[field] = f"no series {selector.prefix}_{name}, though requests were completed"
    _take(page, KV_HIT_RATE, _KV_FAMILY, selector, histograms, unreadable)
    process, uptime_s = _process(page)
    return Reading(process, uptime_s, started or (None if completed else {}), completed, histograms, unreadable)


def _families(prefix: str) -> tuple[str, ...]:
    own = ("requests_started", "requests", "model_context_length", *FIELDS.values())
    return (*(f"{prefix}_{name}" for name in own), _KV_FAMILY, _UPTIME)


def _check_model(page: Page, selector: Selector) -> None:
    """Refuse a page of other models only: a name that never matches would look like no traffic (dynamo#6725)."""
    if selector.model is None:
        return
    own = [series for name, series in page.items() if name.startswith(selector.prefix)]
    seen = {value for series in own for labels in series for name, value in labels if name == "model" and value}
    if seen and selector.model.casefold() not in {name.casefold() for name in seen}:
        shown = ", ".join(repr(name) for name in sorted(seen)[:_SHOWN_NAMES])
        raise RecordError(f"no series of model {selector.model!r}; the models here are {shown}", reason="unknown_model")


def _matches(labels: Labels, selector: Selector) -> bool:
    """Does a series belong to the model, and to the namespace where it has that label?"""
    values = dict(labels)
    if selector.model is not None and values.get("model", selector.model).casefold() != selector.model.casefold():
        return False
    namespace = values.get("dynamo_namespace")
    return selector.namespace is None or namespace is None or _same_namespace(namespace, selector.namespace)


def _same_namespace(seen: str, wanted: str) -> bool:
    """Dynamo writes `my-ns` as `my_ns` in labels, and some deployments add a suffix per worker set (dynamo#13461)."""
    seen, wanted = seen.replace("-", "_"), wanted.replace("-", "_")
    return seen == wanted or seen.startswith(wanted + "_")


def _counter(page: Page, name: str, selector: Selector) -> dict[Labels, float]:
    series = {labels: value for labels, value in page.get(name, {}).items() if _matches(labels, selector)}
    for labels, value in series.items():
        if not is_count(value):
            raise RecordError(f"{name}{dict(labels)} is {value}: no count", reason="not_a_number")
    return series


def _take(
    page: Page, field: str, name: str, selector: Selector, found: dict[str, Histograms], unreadable: dict[str, str]
) -> None:
    try:
        found[field] = _histograms(page, name, selector)
    except RecordError as e:
        unreadable[field] = str(e)


def _histograms(page: Page, name: str, selector: Selector) -> Histograms:
    """The series of a histogram. Raises RecordError when a count or a sum is missing or no number."""
    totals = page.get(f"{name}_sum", {})
    buckets = _buckets(page.get(f"{name}_bucket", {}))
    found: Histograms = {}
    for labels, count in page.get(f"{name}_count", {}).items():
        if not _matches(labels, selector):
            continue
        total = totals.get(labels, math.nan)
        if not (is_count(count) and is_sum(total)):
            raise RecordError(
                f"{name}{dict(labels)} has count {count} and sum {total}: no numbers", reason="not_a_number"
            )
        bounds, cumulative = buckets.get(labels, (None, ()))
        found[labels] = Histogram(count, total, bounds, cumulative)
    return found


def _buckets(series: Mapping[Labels, float]) -> dict[Labels, tuple[tuple[float, ...] | None, tuple[float, ...]]]:
    """Finite bounds and cumulative counts per label set (without `le`); None for buckets that make no sense."""
    grouped: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in series.items():
        rest = tuple((name, text) for name, text in labels if name != "le")
        grouped.setdefault(rest, []).append((_bound(dict(labels).get("le", "")), value))
    return {labels: _sorted_buckets(pairs) for labels, pairs in grouped.items()}


def _sorted_buckets(pairs: list[tuple[float, float]]) -> tuple[tuple[float, ...] | None, tuple[float, ...]]:
    finite = sorted(pair for pair in pairs if pair[0] != math.inf)
    if not all(is_sum(bound) and is_count(value) for bound, value in finite):
        return None, ()
    return tuple(bound for bound, _ in finite), tuple(value for _, value in finite)


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _process(page: Page) -> tuple[str | None, float | None]:
    """Which process answered and how long it has been up (s); unknown where the page tells none or several."""
    series = page.get(_UPTIME, {})
    if len(series) != 1:
        return None, None
    [(labels, uptime_s)] = series.items()
    if not is_sum(uptime_s):
        return None, None
    return repr(labels), uptime_s
