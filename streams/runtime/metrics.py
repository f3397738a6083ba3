"""Prometheus metrics of a planner, from its tick reports: the reference's suffixes under our own prefix.

What is unknown is NaN, never the last value. See docs/metrics.md for the list.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Enum, Gauge

from headrace.schemas.base import Record
from headrace.schemas.decision import Decision
from headrace.schemas.reasons import Reason
from headrace.schemas.tick_report import RoleReport, TickReport
from headrace.streams.runtime.web import Page, serve_pages

PREFIX = "headrace_planner"
UNKNOWN = math.nan
STATES = [str(reason) for reason in Reason]
OBSERVED = {
    "observed_requests_per_second": ("requests_per_s", "Arrivals, requests per second"),
    "observed_input_sequence_tokens": ("isl", "Mean input length, tokens"),
    "observed_output_sequence_tokens": ("osl", "Mean output length, tokens"),
    "observed_ttft_ms": ("ttft_ms", "Mean time to first token, ms"),
    "observed_itl_ms": ("itl_ms", "Mean inter-token latency, ms"),
}
PREDICTED = {
    "predicted_requests_per_second": ("requests_per_s", "Arrivals forecast for the next interval, requests per second"),
    "predicted_input_sequence_tokens": ("isl", "Mean input length forecast, tokens"),
    "predicted_output_sequence_tokens": ("osl", "Mean output length forecast, tokens"),
}
ROLE_GAUGES = {
    "replicas": "Ready and starting replicas",
    "starting_replicas": "Replicas asked for that do not serve yet",
    "unschedulable_replicas": "Starting replicas for which no node has room",
    "target_replicas": "Replicas after this tick's constraints",
    "floor_replicas": "Floor set by the throughput loop",
    "estimated_ttft_ms": "TTFT of the next request on the worst engine, ms",
    "estimated_itl_ms": "ITL on the worst engine, ms",
    "engine_capacity_requests_per_second": "Requests per second of one engine within the SLA",
    "engine_queued_prefill_tokens": "Prompt tokens that wait on the engines",
    "engine_decode_kv_tokens": "KV tokens of decoding requests",
    "workers_with_fpm": "Workers that sent an FPM lately",
    "correction_factor": "Latency seen over latency profiled: TTFT of prefill, ITL of decode (policy `correction`)",
}


class PlannerMetrics:
    """One planner's metrics; :meth:`take` every record that it says or reads back."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._gauges = {name: self._gauge(name, what) for name, (_, what) in {**OBSERVED, **PREDICTED}.items()}
        self._roles = {name: self._gauge(name, what, "role") for name, what in ROLE_GAUGES.items()}
        self._gpu_hours = self._gauge(
            "gpu_hours", "GPU-hours of ready and starting replicas since this process began", "role"
        )
        self._held: dict[tuple[str, str], tuple[float, float, float]] = {}  # (at, s; GPUs; GPU-hours before)
        self._reasons = {
            loop: Enum(
                f"{PREFIX}_{loop}_scaling_decision",
                f"Reason of the {loop} loop",
                ["dgd", "role"],
                states=STATES,
                registry=self.registry,
            )
            for loop in ("load", "throughput")
        }
        self._ticks = self._counter("ticks", "Ticks")
        self._lateness = self._gauge("tick_lateness_seconds", "How late the last tick began")
        self._decisions = self._counter("decisions", "Decisions issued", "advisory")
        self._outstanding = self._gauge("decision_outstanding", "1 while a decision waits for its ack")
        self._epoch = self._gauge("epoch", "Epoch of this owner")
        self._inputs = self._gauge("input_records", "Input counters since the planner's birth", "kind")
        self._others: list[Gauge | Counter] = [
            self._ticks, self._lateness, self._decisions, self._outstanding, self._epoch, self._inputs, self._gpu_hours,
        ]  # fmt: skip

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", what, ["dgd", *labels], registry=self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", what, ["dgd", *labels], registry=self.registry)

    def take(self, records: Iterable[Record]) -> None:
        for record in records:
            if isinstance(record, TickReport):
                self._tick(record)
            elif isinstance(record, Decision):
                self._decisions.labels(record.dgd, str(record.advisory).lower()).inc()

    def _tick(self, r: TickReport) -> None:
        self._ticks.labels(r.dgd).inc()
        self._lateness.labels(r.dgd).set(max(0.0, r.at - r.due_at))
        self._outstanding.labels(r.dgd).set(r.outstanding is not None)
        self._epoch.labels(r.dgd).set(r.epoch)
        for names, values in ((OBSERVED, r.load), (PREDICTED, r.forecast)):
            for name, (key, _) in names.items():
                self._gauges[name].labels(r.dgd).set(values.get(key, UNKNOWN))
        for kind, count in r.counters.items():
            self._inputs.labels(r.dgd, kind).set(count)
        for role, report in r.roles.items():
            self._count_gpus(r.dgd, role, r.at, report)
            for name, value in _role_values(report, r.loops).items():
                self._roles[name].labels(r.dgd, role).set(UNKNOWN if value is None else value)
            for loop, reason in (("load", report.load_reason), ("throughput", report.throughput_reason)):
                if loop in r.loops and reason in STATES:
                    self._reasons[loop].labels(r.dgd, role).state(reason)

    def _count_gpus(self, dgd: str, role: str, at: float, report: RoleReport) -> None:
        """Add what the replicas of the last report have cost since; by time, for ticks come at any distance (case T37).

        What was unknown is not counted: the sum then lacks that time.
        """
        then, gpus, hours = self._held.get((dgd, role), (at, 0.0, 0.0))
        hours += gpus * max(0.0, at - then) / 3600
        each = report.known.get("gpus_per_replica")
        self._held[dgd, role] = at, 0.0 if report.current is None or each is None else report.current * each, hours
        self._gpu_hours.labels(dgd, role).set(hours)

    def forget(self, dgd: str) -> None:
        """Show a DGD no more: another process plans it now."""
        self._held = {(name, role): held for (name, role), held in self._held.items() if name != dgd}
        for metric in (*self._gauges.values(), *self._roles.values(), *self._reasons.values(), *self._others):
            for labels in _label_values(metric, dgd):
                metric.remove(*labels)

    def serve(self, port: int, address: str = "127.0.0.1", pages: Mapping[str, Page] | None = None) -> None:
        """Serve `/metrics`, and other pages, in a thread. Raises ConfigError when the port cannot be had."""
        serve_pages(self.registry, pages or {}, port, address)


def _label_values(metric: Gauge | Counter | Enum, dgd: str) -> set[tuple[str, ...]]:
    """The values of the labels under which a metric shows a DGD."""
    names = ("dgd", "role", "kind", "advisory")  # in this order, where a metric has them
    found = set()
    for family in metric.collect():
        for sample in family.samples:
            if sample.labels.get("dgd") == dgd:
                found.add(tuple(sample.labels[name] for name in names if name in sample.labels))
    return found


def _role_values(r: RoleReport, loops: Sequence[str]) -> dict[str, float | None]:
    """Gauges that this tick can speak for; an estimate of a loop that was not due stays as it is."""
    estimated, known = r.estimated, r.known
    values: dict[str, float | None] = {
        "replicas": r.current,
        "starting_replicas": known.get("starting"),
        "unschedulable_replicas": known.get("unschedulable", 0.0) if "starting" in known else None,
        "target_replicas": r.target,
        "floor_replicas": r.floor,
        "engine_queued_prefill_tokens": known.get("queued_prefill_tokens"),
        "engine_decode_kv_tokens": known.get("decode_kv_tokens"),
        "workers_with_fpm": known.get("workers_with_fpm"),
    }
    if "load" in loops:
        values |= {f"estimated_{name}": estimated.get(name) for name in ("ttft_ms", "itl_ms")}
    if "throughput" in loops:
        values["engine_capacity_requests_per_second"] = estimated.get("capacity_rps")
        values["correction_factor"] = estimated.get("prefill_correction", estimated.get("decode_correction"))
    return values
