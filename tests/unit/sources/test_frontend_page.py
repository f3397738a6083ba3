"""What a frontend's page says, and when it says nothing."""

import pytest
from metrics_support import page

from headrace.connectors.sources.counters import Histogram
from headrace.connectors.sources.frontend_page import Selector, read_page
from headrace.schemas.errors import RecordError


def reason(body: bytes, selector: Selector | None = None) -> tuple[str, str]:
    with pytest.raises(RecordError) as e:
        read_page(body, selector or Selector())
    return e.value.reason, str(e.value)


def test_arrivals_are_requests_started_of_all_endpoints_and_types() -> None:  # row 4, dynamo#9526
    body = page(
        started={("completions", "stream"): 9, ("completions", "unary"): 1, ("chat_completions", "stream"): 5},
        completed=12,
    )
    reading = read_page(body, Selector())
    assert sum(reading.arrivals.values()) == 15.0
    assert reading.started is not None


def test_a_frontend_that_counts_completions_only_is_known_by_it() -> None:  # row 4
    reading = read_page(page(started=None, completed=12), Selector())
    assert reading.started is None
    assert sum(reading.arrivals.values()) == 12.0


def test_a_frontend_without_any_request_yet_has_zero_arrivals() -> None:
    """Dynamo shows a counter only after the first request of its label set: absent is zero here, and known."""
    reading = read_page(page(started=None, completed=None), Selector())
    assert reading.arrivals == {}
    assert reading.started == {}
    assert reading.unreadable == {}


def test_the_model_is_matched_whatever_its_case() -> None:
    body = page(model="Org/Tiny-MODEL", started=7)
    assert sum(read_page(body, Selector(model="org/tiny-model")).arrivals.values()) == 7.0


def test_other_models_do_not_count() -> None:
    body = page(model="a", started=7) + page(model="b", started=5)
    assert sum(read_page(body, Selector(model="b")).arrivals.values()) == 5.0
    assert sum(read_page(body, Selector()).arrivals.values()) == 12.0


def test_a_model_that_nobody_serves_is_unknown_and_the_models_seen_are_named() -> None:  # rows 5 and 6, dynamo#6725
    why, text = reason(page(model="llama", started=7), Selector(model="lama"))
    assert why == "unknown_model"
    assert "'lama'" in text
    assert "'llama'" in text


def test_a_model_that_is_about_to_be_served_has_zero_arrivals() -> None:
    body = b"dynamo_frontend_disconnected_clients 0\n"
    assert read_page(body, Selector(model="llama")).arrivals == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-3", "1e300"])
def test_a_request_counter_that_is_no_count_is_refused(value: str) -> None:  # T6
    why, text = reason(page(started=value))
    assert why == "not_a_number"
    assert "requests_started_total" in text


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_histogram_that_is_no_number_leaves_the_rest_readable(value: str) -> None:  # T6
    reading = read_page(page(started=7, isl=(7, value)), Selector())
    assert "isl" in reading.unreadable
    assert "isl" not in reading.histograms
    assert sum(reading.arrivals.values()) == 7.0
    assert "osl" in reading.histograms


def test_a_histogram_that_is_missing_though_requests_were_completed_is_unknown() -> None:
    reading = read_page(page(started=7, completed=7, isl=None), Selector())
    assert "no series dynamo_frontend_input_sequence_tokens" in reading.unreadable["isl"]


def test_lengths_and_latencies_are_read_with_their_buckets() -> None:
    reading = read_page(page(started=3, isl=(3, 600, {100: 1, 500: 3}), ttft=(3, 0.6)), Selector())
    [isl] = reading.histograms["isl"].values()
    [ttft] = reading.histograms["ttft_s"].values()
    assert isl == Histogram(3.0, 600.0, (100.0, 500.0), (1.0, 3.0))
    assert ttft.total == 0.6


def test_buckets_that_are_no_numbers_leave_count_and_sum() -> None:
    reading = read_page(page(started=3, isl=(3, 600, {100: "NaN", 500: 3})), Selector())
    [isl] = reading.histograms["isl"].values()
    assert isl == Histogram(3.0, 600.0)


def test_the_routers_hit_rate_is_read_for_its_namespace() -> None:  # row 5, dynamo#13461
    body = page(started=3, hits={"my_ns": (4, 3.0), "other": (4, 0.0), "my_ns_a1b2c3": (2, 2.0)})
    found = read_page(body, Selector(namespace="my-ns")).histograms["kv_hit_rate"]
    assert sorted((h.count, h.total) for h in found.values()) == [(2.0, 2.0), (4.0, 3.0)]


def test_without_a_namespace_every_router_counts() -> None:
    body = page(started=3, hits={"my_ns": (4, 3.0), "other": (4, 0.0)})
    assert len(read_page(body, Selector()).histograms["kv_hit_rate"]) == 2


def test_the_process_is_known_by_its_id_and_uptime() -> None:
    reading = read_page(page(started=3, process="7d7b", uptime=62.5), Selector())
    assert "7d7b" in str(reading.process)
    assert reading.uptime_s == 62.5


def test_a_page_of_several_processes_tells_no_uptime() -> None:
    body = page(started=3, process="a", uptime=1.0) + b'dynamo_component_uptime_seconds{worker_id="b"} 9\n'
    assert read_page(body, Selector()).uptime_s is None


def test_another_prefix_of_the_metric_names_is_possible() -> None:
    body = page(started=7).replace(b"dynamo_frontend_", b"my_frontend_")
    assert sum(read_page(body, Selector(prefix="my_frontend")).arrivals.values()) == 7.0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>502 Bad Gateway</body></html>\n",
        b'{"error": "not found"}\n',
        b"go_goroutines 7\n",
        bytes(range(256)),
        b"\x1f\x8b\x08\x00compressed\n",
        b"dynamo_frontend_requests_started_total 13",
    ],
    ids=["empty", "html", "json", "another program", "bytes", "compressed", "cut off"],
)
def test_what_is_no_page_of_a_frontend_is_undecodable(body: bytes) -> None:
    assert reason(body)[0] == "undecodable"
