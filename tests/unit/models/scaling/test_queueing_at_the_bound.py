"""Staffing, at the bound: the count that just keeps a target, by the formulas of the module worked out anew."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
from staffing import DECODE, LINES, MIXED, PREFILL

from headrace.models.perf.latency import EngineLimits
from headrace.models.scaling.mix import Mix
from headrace.models.scaling.queueing import (
    AggLines,
    Demand,
    Sizing,
    Targets,
    agg_engines,
    crowded_engines,
    decode_engines,
    late_share,
    prefill_engines,
    prefill_service,
)

WIDE = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=10_000, max_kv_tokens=10**9)
LOOSE = Targets(ttft_s=10.0, itl_s=10.0, late_share=NormalDist().cdf(-0.9))  # 0.9 deviations
EVEN, WILD = Mix(), Mix.of([500.0, 5500.0], [9, 1])  # squared coefficients of variation of 0 and 2.25
HAIR = 1e-9  # relative; what is that much beyond a target misses it
FIXED_S, PER_REQUEST_S = 0.005, 50e-6 + 0.1e-6 * 1100.0  # of DECODE at the context of 1000 + 200 / 2 tokens

DEMANDS = [
    Demand(400.0, 1000.0, 200.0, mix=EVEN),
    Demand(400.0, 1000.0, 200.0, mix=WILD, accept_length=2.0),
    Demand(1.0, 1000.0, 200.0, mix=EVEN),  # a batch of one, which is rather two
    Demand(0.2, 1000.0, 200.0, mix=WILD),  # a batch below one: it still swells as one would
]


def swollen(batch: float, d: Demand, deviations: float, felt: float = 1.0) -> float:
    unequal = 1.0 + d.mix.cv2 * (1000.0 / 1100.0) ** 2
    return batch + deviations * math.sqrt(max(1.0, batch) * unequal * felt)


def crowd(batch: float, d: Demand) -> float:
    return swollen(batch, d, 0.9, 2.0 / math.e)


def prefill(d: Demand, t: Targets, backlog_per_s: float = 0.0) -> Sizing:
    return prefill_engines(d, prefill_service(d, PREFILL, WIDE), t, backlog_per_s)


def batch_of(d: Demand, engines: int) -> float:
    """Little's law: iterations take the longer the more requests are in them."""
    steps = d.requests_per_s * d.osl / d.accept_length / engines
    return steps * FIXED_S / (1.0 - steps * PER_REQUEST_S)


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_where_there_is_no_slack_late_is_whoever_waits():
    assert late_share(0.5, 1.0, 1.0, 0.0) == 0.5
    assert late_share(0.5, 1.0, 1.0, -0.5) == 0.5


def test_an_engine_is_overloaded_from_98_per_cent_on():
    assert late_share(0.98, 1.0, 1.0, 100.0) == 1.0
    assert late_share(0.9799, 1.0, 1.0, 100.0) < 1.0


def test_an_engine_that_takes_no_time_makes_nobody_late():
    assert late_share(10.0, 0.0, 1.0, 0.0) == 0.0


@pytest.mark.parametrize("mix", [EVEN, WILD])
def test_prefill_engines_are_the_fewest_with_few_enough_late(mix):
    """Engines get every Nth arrival each; a long prompt, of three chunks, has less time to wait."""
    d = Demand(100.0, 1000.0, 200.0, mix=mix)
    times = [0.030] if mix == EVEN else [0.020, 3 * 0.010 + 5500 * 20e-6]
    mean_s = sum(p * s for p, s in zip(mix.shares, times, strict=True))
    cv2 = sum(p * s * s for p, s in zip(mix.shares, times, strict=True)) / mean_s**2 - 1.0
    late = sum(
        p * late_share(100.0 / 6, mean_s, (1.0 / 6 + cv2) / 2.0, 0.200 - s)
        for p, s in zip(mix.shares, times, strict=True)
    )
    just = replace(LOOSE, ttft_s=0.200, late_share=late * (1 + HAIR))
    assert prefill(d, just) == Sizing(6, pytest.approx(100.0 * mean_s / 6))
    assert prefill(d, replace(just, late_share=late * (1 - HAIR))).engines == 7


def test_prompts_that_all_miss_their_target_alone_are_sized_by_load():
    d = Demand(90.0, 1000.0, 200.0, mix=EVEN)
    for ttft_s in (0.020, 0.030 * (1 - HAIR)):
        found = prefill(d, replace(LOOSE, ttft_s=ttft_s), backlog_per_s=6.0)
        assert found == Sizing(3, pytest.approx(90.0 * 0.030 / 3), False, 1.0)  # 96 x 0.030 / 0.98 = 2.94
        assert prefill(d, replace(LOOSE, ttft_s=ttft_s), backlog_per_s=9.0).engines == 4  # 3.03
    assert prefill(d, replace(LOOSE, ttft_s=0.030 * (1 + HAIR))).met


def test_as_many_out_of_reach_as_may_be_late_keep_the_target_and_more_do_not():
    d = Demand(1.0, 1000.0, 200.0, mix=WILD)
    assert prefill(d, replace(LOOSE, ttft_s=0.1, late_share=0.1001)).met
    assert not prefill(d, replace(LOOSE, ttft_s=0.1, late_share=0.0999)).met


@pytest.mark.parametrize("ttft_s", [10.0, 0.020])
def test_no_demand_takes_one_prefill_engine(ttft_s):
    found = prefill(Demand(0.0, 1000.0, 200.0, mix=EVEN), replace(LOOSE, ttft_s=ttft_s))
    assert (found.engines, found.utilisation) == (1, 0.0)


def test_no_more_than_a_hundred_thousand_engines_are_looked_at():
    endless = Demand(99_990 / 0.030, 1000.0, 200.0, mix=EVEN)
    assert prefill(endless, LOOSE).engines == 100_000
    slow = replace(DECODE, intercept_s=0.0)
    steps = 0.98 * 99_990 / PER_REQUEST_S
    assert decode_engines(Demand(steps / 200.0 * 1.001, 1000.0, 200.0), slow, WIDE, LOOSE).engines == 100_000
    assert crowded_engines(10**6, 10**6, DECODE, WIDE, 1e-9) == 100_000
    assert agg_engines(Demand(99_990 / 0.020, 1000.0, 200.0), LINES, WIDE, LOOSE).engines == 100_000


# -- crowding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", DEMANDS)
def test_decode_engines_are_the_fewest_whose_crowded_batch_is_fast_enough(d):
    engines = max(1, math.ceil(d.requests_per_s * d.osl / d.accept_length * PER_REQUEST_S / 0.7))
    step_s = FIXED_S + PER_REQUEST_S * crowd(batch_of(d, engines), d)
    just = replace(LOOSE, itl_s=step_s / d.accept_length * (1 + HAIR))
    found = decode_engines(d, DECODE, WIDE, just)
    steps_per_s = d.requests_per_s * d.osl / d.accept_length
    assert found == Sizing(engines, pytest.approx(steps_per_s * PER_REQUEST_S / engines, rel=1e-9))
    tighter = replace(just, itl_s=step_s / d.accept_length * (1 - HAIR))
    assert decode_engines(d, DECODE, WIDE, tighter).engines == engines + 1


@pytest.mark.parametrize("d", DEMANDS[:3])
def test_decode_engines_have_room_for_the_crowded_batch(d):
    engines = max(1, math.ceil(d.requests_per_s * d.osl / d.accept_length * PER_REQUEST_S / 0.7))
    batch = batch_of(d, engines)
    full = swollen(batch, d, NormalDist().inv_cdf(0.99))
    assert batch > 1.0
    for name, needed in (("max_num_seqs", crowd(batch, d)), ("max_kv_tokens", full * 1100.0)):
        assert decode_engines(d, DECODE, replace(WIDE, **{name: math.ceil(needed)}), LOOSE).engines == engines
        assert decode_engines(d, DECODE, replace(WIDE, **{name: math.floor(needed)}), LOOSE).engines > engines


def test_a_decode_engine_is_never_planned_busier_than_98_per_cent():
    d = Demand(0.98 / PER_REQUEST_S / 200.0, 1000.0, 200.0)
    free = replace(DECODE, intercept_s=0.0)
    assert decode_engines(replace(d, requests_per_s=d.requests_per_s * (1 - 1e-6)), free, WIDE, LOOSE).engines == 1
    assert decode_engines(replace(d, requests_per_s=d.requests_per_s * (1 + 1e-6)), free, WIDE, LOOSE).engines == 2


def test_a_lone_request_that_just_meets_the_target_meets_it():
    d = Demand(1e-6, 1000.0, 200.0)
    calm = replace(LOOSE, late_share=0.999)  # the batch that nearly all find is empty
    lone_s = FIXED_S + PER_REQUEST_S
    assert decode_engines(d, DECODE, WIDE, replace(calm, itl_s=lone_s * (1 + HAIR))).met
    assert not decode_engines(d, DECODE, WIDE, replace(calm, itl_s=lone_s * (1 - HAIR))).met


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (WIDE, FIXED_S / PER_REQUEST_S),  # the knee
        (replace(WIDE, max_num_seqs=20), 20.0),
        (replace(WIDE, max_kv_tokens=11_000), 10.0),
        (replace(WIDE, max_kv_tokens=500), 1.0),  # not even one fits: one runs all the same
    ],
)
def test_an_itl_that_cannot_be_met_is_sized_by_the_knee_or_the_largest_batch(limits, most):
    d = Demand(100.0, 1000.0, 200.0)
    found = decode_engines(d, DECODE, limits, replace(LOOSE, itl_s=0.001))
    engines = math.ceil(100.0 * 200.0 * (FIXED_S + PER_REQUEST_S * most) / most)
    assert found == Sizing(engines, 1.0, met=False)


def test_no_demand_takes_one_decode_engine_where_no_target_can_be_met():
    found = decode_engines(Demand(0.0, 1000.0, 200.0), DECODE, WIDE, replace(LOOSE, itl_s=0.001))
    assert found == Sizing(1, 1.0, met=False)


def test_contexts_of_less_than_a_token_are_one_token():
    found = decode_engines(
        Demand(100.0, 0.0, 1.0), DECODE, replace(WIDE, max_kv_tokens=10), replace(LOOSE, itl_s=0.001)
    )
    per_request_s = 50e-6 + 0.1e-6 * 0.5
    assert found.engines == math.ceil(100.0 * (FIXED_S + per_request_s * 10) / 10)


def test_what_decodes_now_is_spread_until_it_just_fits():
    step_s = FIXED_S + 50e-6 * 20.0 + 0.1e-6 * 20_000.0  # 60 requests with 60,000 tokens, on three engines
    assert crowded_engines(60.0, 60_000.0, DECODE, WIDE, step_s * (1 + HAIR)) == 3
    assert crowded_engines(60.0, 60_000.0, DECODE, WIDE, step_s * (1 - HAIR)) == 4
    assert crowded_engines(60.0, 60_000.0, DECODE, replace(WIDE, max_kv_tokens=20_000), 1.0) == 3
    assert crowded_engines(60.0, 60_000.0, DECODE, replace(WIDE, max_num_seqs=20), 1.0) == 3


def test_nothing_that_decodes_needs_one_engine_and_three_requests_never_more_than_three():
    assert crowded_engines(0.0, 0.0, DECODE, WIDE, 1e-9) == 1
    assert crowded_engines(3.0, 3000.0, DECODE, WIDE, 1e-9) == 3


# -- both on one engine ------------------------------------------------------------------------------------------------

PROMPT_S = 0.020  # that one of 1,000 tokens takes away


def mixed(engines: int, rate: float = 100.0) -> float:
    """Seconds of the crowded iteration."""
    d = Demand(rate, 1000.0, 200.0, mix=EVEN)
    each = rate / engines
    prefill_busy, decode_busy = each * PROMPT_S, each * 200.0 * PER_REQUEST_S
    batch = each * 200.0 * FIXED_S / (1.0 - prefill_busy - decode_busy)
    return (FIXED_S + PER_REQUEST_S * crowd(batch, d)) / (1.0 - prefill_busy)


BOTH = Demand(100.0, 1000.0, 200.0, mix=EVEN)


def test_aggregated_engines_are_the_fewest_whose_crowded_iteration_is_fast_enough():
    crowded_s = mixed(8)
    found = agg_engines(BOTH, LINES, WIDE, replace(LOOSE, itl_s=crowded_s * (1 + HAIR)))
    assert found == Sizing(8, pytest.approx((100.0 * PROMPT_S + 100.0 * 200.0 * PER_REQUEST_S) / 8, rel=1e-9))
    assert agg_engines(BOTH, LINES, WIDE, replace(LOOSE, itl_s=crowded_s * (1 - HAIR))).engines == 9


def test_aggregated_engines_are_the_fewest_with_few_enough_late():
    busy = 100.0 / 8 * PROMPT_S  # 0.25, of which 0.184 may wait longer than what is left
    wait_s = PROMPT_S * (1.0 / 8) / 2.0 / (1.0 - busy) * math.log(busy / LOOSE.late_share)
    ttft_s = mixed(8) + PROMPT_S + wait_s
    assert agg_engines(BOTH, LINES, WIDE, replace(LOOSE, ttft_s=ttft_s * (1 + HAIR))).engines == 8
    assert agg_engines(BOTH, LINES, WIDE, replace(LOOSE, ttft_s=ttft_s * (1 - HAIR))).engines == 9


def test_an_aggregated_engine_whose_lone_request_misses_a_target_is_sized_by_its_work():
    lone_itl_s = FIXED_S + PER_REQUEST_S
    few = replace(BOTH, requests_per_s=1e-6)
    calm = replace(LOOSE, late_share=0.999)
    assert agg_engines(few, LINES, WIDE, replace(calm, itl_s=lone_itl_s * (1 + HAIR))).met
    assert not agg_engines(few, LINES, WIDE, replace(calm, itl_s=lone_itl_s * (1 - HAIR))).met
    lone_ttft_s = lone_itl_s + PROMPT_S
    assert agg_engines(few, LINES, WIDE, replace(calm, ttft_s=lone_ttft_s * (1 + HAIR))).met
    tight = agg_engines(few, LINES, WIDE, replace(calm, ttft_s=lone_ttft_s * (1 - HAIR)))
    assert tight == Sizing(1, 1.0, False, 1.0)
    slow = replace(calm, itl_s=0.001)
    knee = FIXED_S / PER_REQUEST_S
    work = 100.0 * PROMPT_S + 100.0 * 200.0 * 2 * FIXED_S / knee
    assert agg_engines(BOTH, LINES, WIDE, slow) == Sizing(math.ceil(work / 0.98), 1.0, met=False)
    assert agg_engines(BOTH, LINES, WIDE, slow, backlog_per_s=890.0).engines == 20  # 990 x 0.020


@pytest.mark.parametrize("itl_s", [10.0, 0.001])
def test_no_demand_takes_one_aggregated_engine(itl_s):
    assert agg_engines(Demand(0.0, 1000.0, 200.0), LINES, WIDE, replace(LOOSE, itl_s=itl_s)).engines == 1


def test_a_prompt_is_cut_into_the_chunks_that_an_iteration_admits_and_each_pays_for_itself():
    apart = AggLines(DECODE, replace(MIXED, intercept_s=0.006))  # a millisecond more where a prompt is computed
    limits = replace(WIDE, max_num_batched_tokens=400)
    assert apart.prompt_s(1000.0, 1100.0, limits) == pytest.approx(3 * 0.001 + 0.020)
    assert apart.prompt_s(1000.0, 1100.0, replace(limits, max_num_batched_tokens=0)) == pytest.approx(
        1000 * 0.001 + 0.020
    )
    assert apart.prompt_s(0.0, 1100.0, limits) == pytest.approx(0.001)
    assert AggLines(DECODE, DECODE).prompt_s(1000.0, 1100.0, limits) == pytest.approx(3 * 1e-6)


def test_bursts_are_felt_in_proportion_to_the_time_up_to_that_in_which_they_were_measured():
    bursty = Demand(1.0, 1.0, 1.0, dispersion=3.0, dispersion_s=5.0)
    assert [bursty.dispersion_over(s) for s in (0.0, 2.5, 5.0, 50.0)] == [1.0, 2.0, 3.0, 3.0]
