"""Staffing: invariants."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from staffing import DECODE, LIMITS, LINES, PREFILL, TARGETS

from headrace.models.scaling.mix import Mix
from headrace.models.scaling.queueing import (
    Demand,
    Sizing,
    Targets,
    agg_engines,
    agg_service,
    decode_engines,
    late_share,
    prefill_engines,
    prefill_service,
)

DEMAND = Demand(requests_per_s=20.0, isl=1000.0, osl=200.0)

rates = st.floats(0.0, 2000.0)
mixes = st.lists(st.tuples(st.floats(1.0, 1e5), st.integers(1, 1000)), min_size=1, max_size=12).map(
    lambda parts: Mix.of([x for x, _ in parts], [n for _, n in parts])
)


def prefill(d: Demand, t: Targets) -> Sizing:
    return prefill_engines(d, prefill_service(d, PREFILL, LIMITS), t)


@given(low=rates, high=rates)
def test_more_demand_never_needs_fewer_engines(low: float, high: float) -> None:
    low, high = sorted((low, high))
    a, b = replace(DEMAND, requests_per_s=low), replace(DEMAND, requests_per_s=high)
    assert prefill(a, TARGETS).engines <= prefill(b, TARGETS).engines
    assert decode_engines(a, DECODE, LIMITS, TARGETS).engines <= decode_engines(b, DECODE, LIMITS, TARGETS).engines
    assert agg_engines(a, LINES, LIMITS, TARGETS).engines <= agg_engines(b, LINES, LIMITS, TARGETS).engines


@given(rate=rates, share=st.floats(0.001, 0.5), ttft_s=st.floats(0.05, 5.0), mix=mixes)
def test_the_share_that_is_late_is_kept_among_those_within_reach(
    rate: float, share: float, ttft_s: float, mix: Mix
) -> None:
    d = replace(DEMAND, requests_per_s=rate, mix=mix)
    service = prefill_service(d, PREFILL, LIMITS)
    found = prefill(d, replace(TARGETS, ttft_s=ttft_s, late_share=share))
    assert found.out_of_reach == service.out_of_reach(ttft_s)
    each = rate / found.engines
    assert each * service.mean_s <= 1.0 + 1e-9
    if found.out_of_reach < 0.999:
        variability = (1.0 / found.engines + service.cv2) / 2.0
        assert service.late(ttft_s, lambda slack: late_share(each, service.mean_s, variability, slack)) <= share


@given(mix=mixes, tokens=st.floats(1.0, 1e5))
def test_a_mix_keeps_the_mean_and_no_prompt_mix_is_cheaper_than_its_fixed_cost(mix: Mix, tokens: float) -> None:
    assert abs(sum(m * p for m, p in zip(mix.multiples, mix.shares, strict=True)) - 1.0) < 1e-9
    service = prefill_service(replace(DEMAND, isl=tokens, mix=mix), PREFILL, LIMITS)
    assert service.mean_s >= PREFILL.at(tokens) * (1 - 1e-9)  # chunks only add to it
    assert service.cv2 >= 0.0


@given(rate=rates, itl_ms=st.floats(1.0, 50.0), calm=st.floats(1.0, 40.0), wild=st.floats(1.0, 40.0))
def test_more_bursts_never_need_fewer_engines(rate: float, itl_ms: float, calm: float, wild: float) -> None:
    calm, wild = sorted((calm, wild))
    a, b = (replace(DEMAND, requests_per_s=rate, dispersion=x) for x in (calm, wild))
    targets = replace(TARGETS, itl_s=itl_ms / 1000)
    assert prefill(a, targets).engines <= prefill(b, targets).engines
    assert decode_engines(a, DECODE, LIMITS, targets).engines <= decode_engines(b, DECODE, LIMITS, targets).engines
    assert agg_engines(a, LINES, LIMITS, targets).engines <= agg_engines(b, LINES, LIMITS, targets).engines


@given(rate=st.floats(1.0, 2000.0), itl_ms=st.floats(0.1, 50.0))
def test_no_aggregated_fleet_is_smaller_than_its_load(rate: float, itl_ms: float) -> None:
    """It must not collapse, whatever the target: prompts and decoding together fit into its time."""
    d = replace(DEMAND, requests_per_s=rate)
    found = agg_engines(d, LINES, LIMITS, replace(TARGETS, itl_s=itl_ms / 1000))
    prompts = rate * agg_service(d, LINES, LIMITS).mean_s
    decoding = rate * d.osl * (50e-6 + 0.1e-6 * d.context)
    assert prompts + decoding <= found.engines
