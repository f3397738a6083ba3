"""Staffing: invariants."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.models.perf.latency import EngineLimits
from headrace.models.perf.line import Line
from headrace.models.scaling.queueing import (
    AggLines,
    Demand,
    Targets,
    agg_engines,
    decode_engines,
    late_share,
    prefill_engines,
)

PREFILL = Line(intercept_s=0.010, per_prefill_token_s=20e-6)
DECODE = Line(intercept_s=0.005, per_decode_request_s=50e-6, per_kv_token_s=0.1e-6)
MIXED = Line(intercept_s=0.005, per_prefill_token_s=20e-6, per_decode_request_s=50e-6, per_kv_token_s=0.1e-6)
LINES = AggLines(DECODE, MIXED)
LIMITS = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=400_000)
TARGETS = Targets(ttft_s=0.3, itl_s=0.020, late_share=0.03)
DEMAND = Demand(requests_per_s=20.0, isl=1000.0, osl=200.0)

rates = st.floats(0.0, 2000.0)


@given(low=rates, high=rates)
def test_more_demand_never_needs_fewer_engines(low: float, high: float) -> None:
    low, high = sorted((low, high))
    a, b = replace(DEMAND, requests_per_s=low), replace(DEMAND, requests_per_s=high)
    assert prefill_engines(a, PREFILL, TARGETS).engines <= prefill_engines(b, PREFILL, TARGETS).engines
    assert decode_engines(a, DECODE, LIMITS, TARGETS).engines <= decode_engines(b, DECODE, LIMITS, TARGETS).engines
    assert agg_engines(a, LINES, LIMITS, TARGETS).engines <= agg_engines(b, LINES, LIMITS, TARGETS).engines


@given(rate=rates, share=st.floats(0.001, 0.5), slack=st.floats(0.05, 5.0))
def test_the_share_that_is_late_is_kept(rate: float, share: float, slack: float) -> None:
    targets = replace(TARGETS, ttft_s=slack, late_share=share)
    found = prefill_engines(replace(DEMAND, requests_per_s=rate), PREFILL, targets)
    left = late_share(rate / found.engines, 0.030, (1.0 / found.engines + 1.0) / 2.0, slack - 0.045)
    assert not found.met or left <= share


@given(rate=rates, itl_ms=st.floats(1.0, 50.0), calm=st.floats(1.0, 40.0), wild=st.floats(1.0, 40.0))
def test_more_bursts_never_need_fewer_engines(rate: float, itl_ms: float, calm: float, wild: float) -> None:
    calm, wild = sorted((calm, wild))
    a, b = (replace(DEMAND, requests_per_s=rate, dispersion=x) for x in (calm, wild))
    targets = replace(TARGETS, itl_s=itl_ms / 1000)
    assert prefill_engines(a, PREFILL, targets).engines <= prefill_engines(b, PREFILL, targets).engines
    assert decode_engines(a, DECODE, LIMITS, targets).engines <= decode_engines(b, DECODE, LIMITS, targets).engines
    assert agg_engines(a, LINES, LIMITS, targets).engines <= agg_engines(b, LINES, LIMITS, targets).engines


@given(rate=st.floats(1.0, 2000.0), itl_ms=st.floats(0.1, 50.0))
def test_no_aggregated_fleet_is_smaller_than_its_load(rate: float, itl_ms: float) -> None:
    """It must not collapse, whatever the target: prompts and decoding together fit into its time."""
    d = replace(DEMAND, requests_per_s=rate)
    found = agg_engines(d, LINES, LIMITS, replace(TARGETS, itl_s=itl_ms / 1000))
    prompts = rate * LINES.prompt_s(d.prompt, d.context, LIMITS)
    decoding = rate * d.osl * (50e-6 + 0.1e-6 * d.context)
    assert prompts + decoding <= found.engines
