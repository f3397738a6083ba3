"""Metrics pages: plain text, OpenMetrics, and everything that only looks like one."""

import math

import pytest

from headrace.connectors.sources.prom_text import mentions, parse
from headrace.schemas.errors import RecordError

FAMILIES = ("requests", "isl")


def refused(body: bytes) -> str:
    with pytest.raises(RecordError) as e:
        parse(body, FAMILIES)
    assert e.value.reason == "undecodable"
    return str(e.value)


def test_samples_are_read_by_name_and_labels() -> None:
    page = parse(
        b'# HELP requests x\n# TYPE requests counter\nrequests_total{b="2",a="1"} 3\nrequests_total 4\n', FAMILIES
    )
    assert page == {"requests_total": {(("a", "1"), ("b", "2")): 3.0, (): 4.0}}


def test_other_families_are_not_looked_at() -> None:
    page = parse(b"garbage here\nrequests_started_total 9\nother 1\nrequests_total 3\n", FAMILIES)
    assert page == {"requests_total": {(): 3.0}}


def test_an_escaped_label_is_read_as_it_was_meant() -> None:
    page = parse(b'requests_total{model="a\\"} 9 {\\\\b\\nc"} 3\n', FAMILIES)
    assert page == {"requests_total": {(("model", 'a"} 9 {\\b\nc'),): 3.0}}


def test_a_time_behind_the_value_is_ignored() -> None:
    assert parse(b"requests_total 3 1796086599815\n", FAMILIES) == {"requests_total": {(): 3.0}}


def test_not_a_number_and_infinity_are_read_as_such() -> None:  # T6
    values = parse(b'requests_total{a="1"} NaN\nrequests_total{a="2"} +Inf\nrequests_total{a="3"} -Inf\n', FAMILIES)
    numbers = list(values["requests_total"].values())
    assert math.isnan(numbers[0])
    assert numbers[1:] == [math.inf, -math.inf]


def test_a_type_that_is_given_twice_does_no_harm() -> None:
    body = b'# TYPE requests counter\nrequests_total 1\n# TYPE requests gauge\nrequests_total{a="1"} 2\n'
    assert parse(body, FAMILIES) == {"requests_total": {(): 1.0, (("a", "1"),): 2.0}}


def test_openmetrics_is_read_with_its_exemplars() -> None:
    body = (
        b'# TYPE isl histogram\nisl_bucket{le="1.0"} 3 # {trace_id="x # y"} 0.5\nisl_bucket{le="+Inf"} 3\nisl_count 3\n'
        b"isl_sum 4\n# TYPE requests counter\nrequests_total 3\n# TYPE other counter\nother 7 # not even valid\n# EOF\n"
    )
    page = parse(body, FAMILIES)
    assert page["isl_bucket"][(("le", "1.0"),)] == 3.0
    assert (page["isl_sum"], page["isl_count"], page["requests_total"]) == ({(): 4.0}, {(): 3.0}, {(): 3.0})


def test_windows_line_ends_are_read() -> None:
    assert parse(b"requests_total 3\r\n", FAMILIES) == {"requests_total": {(): 3.0}}


def test_an_empty_page_has_no_samples() -> None:
    assert parse(b"", FAMILIES) == {}


def test_a_page_that_is_cut_off_is_refused() -> None:
    """131 that was cut to 13 would look like a restart, and add 13."""
    assert "cut off" in refused(b"requests_total 131\nrequests_total 13")


def test_bytes_that_are_no_text_are_refused() -> None:
    assert "not UTF-8" in refused(b"\xff\xfe\x00requests_total 3\n")


@pytest.mark.parametrize(
    "line",
    [
        b"requests_total",
        b"requests_total x",
        b'requests_total{a="1" 3',
        b"requests_total 0x10",
        b'requests_total{a="1",a="2"} 3',
    ],
)
def test_a_line_that_is_no_sample_is_refused(line: bytes) -> None:
    refused(line + b"\n")


def test_a_series_that_occurs_twice_is_refused() -> None:
    assert "twice" in refused(b'requests_total{a="1",b="2"} 1\nrequests_total{b="2",a="1"} 2\n')


def test_mentions_looks_at_the_beginnings_of_lines() -> None:
    assert mentions(b"a_b 1\n", "a_")
    assert mentions(b"x 1\na_b 1\n", "a_")
    assert not mentions(b"x_a_b 1\n# a_b\n", "a_")
