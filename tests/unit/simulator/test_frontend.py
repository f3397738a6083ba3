import re
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.config import SimulatorConfig
from headrace.connectors.simulator.exposition import render
from headrace.connectors.simulator.frontend import Frontend
from headrace.connectors.simulator.histogram import Histogram
from headrace.connectors.simulator.timing import Transfer
from headrace.connectors.simulator.traces import Trace
from headrace.schemas.codec import decode, encode
from headrace.schemas.traffic import Distribution, TrafficWindow

Config = Callable[..., SimulatorConfig]
Traces = Callable[..., Trace]
Run = Callable[..., Cluster]

ROWS = [(i * 0.2, 100 + 37 * i, 1 + i % 7) for i in range(60)]


def samples(text: str) -> dict[str, float]:
    """`name{labels}` -> value of a `/metrics` page."""
    return {
        f"{s.name}{sorted(s.labels.items())}": s.value for f in text_string_to_metric_families(text) for s in f.samples
    }


def test_an_observation_falls_into_the_first_bucket_that_is_not_below_it() -> None:
    h = Histogram((0, 10, 20))
    for value in (0, 0.1, 10, 10.1, 20, 21):
        h.observe(value)
    assert h.counts == [1, 2, 2, 1]
    assert (h.count, h.sum) == (6, pytest.approx(61.2))


def test_many_equal_observations_count_like_one_by_one() -> None:
    once, many = Histogram((1, 2)), Histogram((1, 2))
    for _ in range(5):
        once.observe(1.5)
    many.observe(1.5, 5)
    many.observe(0.5, 0)
    assert once.read() == many.read()


def test_the_difference_of_two_readings_is_what_was_observed_between() -> None:
    h = Histogram((1, 2))
    h.observe(0.5)
    before = h.read()
    h.observe(1.5)
    h.observe(3.5)
    assert h.since(before) == Distribution(count=2, mean=2.5, bounds=[1, 2], counts=[0, 1, 1])
    assert h.since(h.read()) == Distribution(count=0, mean=None, bounds=[1, 2], counts=[0, 0, 0])


def test_windows_add_up_to_the_whole_trace(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(), trace(*ROWS), 1)
    windows: list[TrafficWindow] = []
    while not cluster.drained:
        cluster.run_until(cluster.now + 0.7)
        windows.append(cluster.traffic_window())
    assert sum(w.requests or 0 for w in windows) == len(ROWS)
    assert sum(w.isl.count * (w.isl.mean or 0.0) for w in windows if w.isl) == pytest.approx(sum(r[1] for r in ROWS))
    assert sum(w.osl.count * (w.osl.mean or 0.0) for w in windows if w.osl) == pytest.approx(sum(r[2] for r in ROWS))
    assert sum(w.itl_s.count for w in windows if w.itl_s) == sum(r[2] - 1 for r in ROWS)
    assert [w.start for w in windows[1:]] == [w.end for w in windows[:-1]]
    assert len({w.window_id for w in windows}) == len(windows)


def test_a_quiet_window_knows_that_nothing_came_and_not_how_long_it_was(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(), trace((9.0, 100, 2)), 1)
    cluster.run_until(5.0)
    window = cluster.traffic_window()
    assert window.requests == 0
    assert window.isl is not None
    assert (window.isl.count, window.isl.mean) == (0, None)
    assert window.kv_hit_rate is None
    assert set(window.unknown) == {"kv_hit_rate", "accept_length"}
    assert decode("traffic", encode(window)) == window


def test_a_window_counts_arrivals_not_completions(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(), trace((0.0, 100, 500), (0.1, 100, 500)), 1)
    cluster.run_until(0.2)
    window = cluster.traffic_window()
    assert window.requests == 2
    assert window.osl is not None
    assert window.osl.count == 0
    assert window.kv_hit_rate == 0.0


def test_the_page_agrees_with_the_requests(disagg: Config, trace: Traces, finished: Run) -> None:
    cluster = finished(disagg(), trace(*ROWS))
    page = samples(render(cluster.frontend, "m"))
    requests = cluster.requests
    model = "[('model', 'm')]"
    assert page[f"dynamo_frontend_input_sequence_tokens_sum{model}"] == sum(r.isl for r in requests)
    assert page[f"dynamo_frontend_output_tokens_total{model}"] == sum(r.osl for r in requests)
    assert page[f"dynamo_frontend_time_to_first_token_seconds_count{model}"] == len(requests)
    assert page[f"dynamo_frontend_time_to_first_token_seconds_sum{model}"] == pytest.approx(
        sum(r.ttft_s or 0.0 for r in requests)
    )
    assert page[f"dynamo_frontend_inter_token_latency_seconds_sum{model}"] == pytest.approx(
        sum(r.finished_at - r.first_token_at for r in requests)
    )
    assert page[f"dynamo_frontend_inflight_requests{model}"] == 0
    assert page[f"dynamo_frontend_queued_requests{model}"] == 0


def test_gauges_show_who_waits_and_who_runs(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(), trace((0.0, 100, 500), (0.001, 100, 500)), 1)
    cluster.run_until(0.012)  # the first has its first token
    assert (cluster.frontend.inflight, cluster.frontend.queued) == (2, 1)


def test_the_itl_of_the_second_token_has_the_transfer_in_it(disagg: Config, trace: Traces, finished: Run) -> None:
    itl = finished(disagg(transfer=Transfer(latency_s=0.2)), trace((0.0, 1000, 4))).frontend.itl
    assert dict(zip([*itl.bounds, "more"], itl.counts, strict=True))[0.3] == 1
    assert (itl.count, itl.sum) == (3, pytest.approx(0.2 + 3 * 0.00505 + 100e-9 * 3006))


def test_counters_only_rise(disagg: Config, trace: Traces) -> None:
    cluster = Cluster(disagg(), trace(*ROWS), 1)
    before: dict[str, float] = {}
    gauges = ("active_requests", "inflight_requests", "queued_requests")
    for t in range(1, 15):
        cluster.run_until(float(t))
        page = {k: v for k, v in samples(render(cluster.frontend, "m")).items() if not any(g in k for g in gauges)}
        assert all(page[name] >= value for name, value in before.items())
        before = page
    assert len(before) > 90


def test_buckets_are_cumulative_up_to_the_count(disagg: Config, trace: Traces, finished: Run) -> None:
    text = render(finished(disagg(), trace(*ROWS)).frontend, "m")
    buckets = [int(v) for v in re.findall(r'input_sequence_tokens_bucket\{model="m",le="[^"]+"\} (\d+)', text)]
    assert buckets == sorted(buckets)
    assert buckets[-1] == len(ROWS)


def test_counters_appear_with_their_first_request() -> None:
    frontend = Frontend()
    assert "requests_started_total" not in render(frontend, "m")
    frontend.arrived()
    assert "requests_started_total" in render(frontend, "m")


def test_a_model_name_is_escaped() -> None:
    (name,) = {
        s.labels["model"] for f in text_string_to_metric_families(render(Frontend(), 'a"b\\c')) for s in f.samples
    }
    assert name == 'a"b\\c'


@pytest.mark.shared
def test_names_labels_and_bounds_are_those_of_dynamos_frontend(
    shared: Path, disagg: Config, trace: Traces, finished: Run
) -> None:
    def shape(text: str) -> dict[str, tuple[str, set[str], tuple[str, ...]]]:
        out = {}
        for family in text_string_to_metric_families(text):
            labels = {label for s in family.samples for label in s.labels} - {"le"}
            bounds = tuple(s.labels["le"] for s in family.samples if s.name.endswith("_bucket"))
            out[family.name] = (family.type, labels, bounds)
        return out

    real = shape((shared / "data/captures/frontend_metrics.txt").read_text())
    ours = shape(render(finished(disagg(), trace(*ROWS)).frontend, "m"))
    assert len(ours) == 12
    for name, what in ours.items():
        assert what == real[name], name
