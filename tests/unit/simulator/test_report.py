import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.simulator.report import Percentiles, percentiles, share
from headrace.connectors.simulator.request import Request


def test_percentiles_are_interpolated_between_order_statistics() -> None:
    p = percentiles(float(i) for i in range(101))
    assert (p.count, p.mean, p.p50, p.p90, p.p99) == (101, 50.0, 50.0, pytest.approx(90.0), pytest.approx(99.0))
    assert percentiles([1.0, 2.0]).p50 == 1.5


def test_there_are_no_percentiles_of_nothing() -> None:
    assert percentiles([]) == Percentiles(count=0, mean=None, p50=None, p90=None, p99=None)


@given(values=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    p = percentiles(values)
    assert p.p50 is not None
    assert p.p90 is not None
    assert p.p99 is not None
    assert min(values) <= p.p50 <= p.p90 <= p.p99 <= max(values)


def request(ttft: float, itl: float | None, osl: int = 11) -> Request:
    r = Request(0, 10.0, 100, osl)
    r.first_token_at = 10.0 + ttft
    if itl is not None:
        r.finished_at = r.first_token_at + itl * (osl - 1)
    return r


def test_the_share_counts_all_requests_and_needs_both_targets() -> None:
    never = Request(0, 10.0, 100, 10)
    requests = [request(0.1, 0.01), request(0.6, 0.01), request(0.1, 0.09), request(0.1, None), never]
    assert share(requests, 0.5, 0.05) == pytest.approx(1 / 5)
    assert share(requests, 0.5, math.inf) == pytest.approx(2 / 5)
    assert share([], 0.5, 0.05) == 0.0
