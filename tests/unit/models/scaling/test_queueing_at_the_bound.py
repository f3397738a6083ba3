"""Staffing, at the bound: the count that just keeps a target, by the formulas of docs/scaling.md worked out anew."""

import math
from dataclasses import replace

import pytest

from headrace.models.perf.latency import EngineLimits
from headrace.models.perf.line import Line
from headrace.models.scaling.queueing import (
    Demand,
    Sizing,
    Targets,
    agg_engines,
    crowded_engines,
    decode_engines,
    late_share,
    prefill_engines,
)

PREFILL = Line(intercept_s=0.010, per_prefill_token_s=20e-6)
DECODE = Line(intercept_s=0.005, per_decode_request_s=50e-6, per_kv_token_s=0.1e-6)
MIXED = replace(DECODE, per_prefill_token_s=20e-6)
WIDE = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=10_000, max_kv_tokens=10**9)
LOOSE = Targets(ttft_s=10.0, itl_s=10.0, late_share=0.03, batch_deviations=0.9)
HAIR = 1e-9  # relative; what is that much beyond a target misses it
FIXED_S, PER_REQUEST_S = 0.005, 50e-6 + 0.1e-6 * 1100.0  # of DECODE at the context of 1000 + 200 / 2 tokens

DEMANDS = [
    Demand(400.0, 1000.0, 200.0),
    Demand(400.0, 1000.0, 200.0, isl_cv2=4.0, accept_length=2.0),
    Demand(1.0, 1000.0, 200.0, isl_cv2=0.0),  # a batch of one, which is rather two
    Demand(0.2, 1000.0, 200.0),  # a batch below one: it still swells as one would
]


def crowd(batch: float, d: Demand) -> float:
    return batch + LOOSE.batch_deviations * math.sqrt(max(1.0, batch) * (1.0 + d.isl_cv2 / 2.0))


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


@pytest.mark.parametrize("d", [Demand(100.0, 1000.0, 200.0), Demand(100.0, 1000.0, 200.0, isl_cv2=3.0)])
def test_prefill_engines_are_the_fewest_with_few_enough_late(d):
    """Six engines get every sixth arrival each; a prompt longer than the mean takes half a mean more."""
    service_s = 0.030
    late = late_share(100.0 / 6, service_s, (1.0 / 6 + d.isl_cv2) / 2.0, 0.100 - 1.5 * service_s)
    just = replace(LOOSE, ttft_s=0.100, late_share=late * (1 + HAIR))
    assert prefill_engines(d, PREFILL, just) == Sizing(6, pytest.approx(100.0 * service_s / 6))
    assert prefill_engines(d, PREFILL, replace(just, late_share=late * (1 - HAIR))).engines == 7


@pytest.mark.parametrize("ttft_s", [0.045, 0.020])
def test_a_prompt_that_takes_two_thirds_of_its_target_leaves_no_time_to_wait(ttft_s):
    d = Demand(90.0, 1000.0, 200.0)
    found = prefill_engines(d, PREFILL, replace(LOOSE, ttft_s=ttft_s), backlog_per_s=6.0)
    assert found == Sizing(3, pytest.approx(90.0 * 0.030 / 3), met=False)  # 96 x 0.030 / 0.98 = 2.94
    assert prefill_engines(d, PREFILL, replace(LOOSE, ttft_s=ttft_s), backlog_per_s=9.0).engines == 4  # 3.03


@pytest.mark.parametrize("ttft_s", [10.0, 0.020])
def test_no_demand_takes_one_prefill_engine(ttft_s):
    found = prefill_engines(Demand(0.0, 1000.0, 200.0), PREFILL, replace(LOOSE, ttft_s=ttft_s))
    assert (found.engines, found.utilisation) == (1, 0.0)


def test_no_more_than_a_hundred_thousand_engines_are_looked_at():
    endless = Demand(99_990 / 0.030, 1000.0, 200.0)
    assert prefill_engines(endless, PREFILL, LOOSE).engines == 100_000
    slow = replace(DECODE, intercept_s=0.0)
    steps = 0.98 * 99_990 / PER_REQUEST_S
    assert decode_engines(Demand(steps / 200.0 * 1.001, 1000.0, 200.0), slow, WIDE, LOOSE).engines == 100_000
    assert crowded_engines(10**6, 10**6, DECODE, WIDE, 1e-9) == 100_000
    assert agg_engines(Demand(99_990 / 0.020, 1000.0, 200.0), MIXED, WIDE, LOOSE).engines == 100_000


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


@pytest.mark.parametrize("d", DEMANDS)
def test_decode_engines_have_room_for_the_crowded_batch(d):
    engines = max(1, math.ceil(d.requests_per_s * d.osl / d.accept_length * PER_REQUEST_S / 0.7))
    swollen = crowd(batch_of(d, engines), d)
    for name, needed in (("max_num_seqs", swollen), ("max_kv_tokens", swollen * 1100.0)):
        assert decode_engines(d, DECODE, replace(WIDE, **{name: math.ceil(needed)}), LOOSE).engines == engines
        assert decode_engines(d, DECODE, replace(WIDE, **{name: math.floor(needed)}), LOOSE).engines > engines


def test_a_decode_engine_is_never_planned_busier_than_98_per_cent():
    d = Demand(0.98 / PER_REQUEST_S / 200.0, 1000.0, 200.0)
    free = replace(DECODE, intercept_s=0.0)
    assert decode_engines(replace(d, requests_per_s=d.requests_per_s * (1 - 1e-6)), free, WIDE, LOOSE).engines == 1
    assert decode_engines(replace(d, requests_per_s=d.requests_per_s * (1 + 1e-6)), free, WIDE, LOOSE).engines == 2


def test_a_lone_request_that_just_meets_the_target_meets_it():
    d = Demand(1e-6, 1000.0, 200.0)
    calm = replace(LOOSE, batch_deviations=0.0)
    lone_s = FIXED_S + PER_REQUEST_S
    assert decode_engines(d, DECODE, WIDE, replace(calm, itl_s=lone_s * (1 + HAIR))).met
    assert not decode_engines(d, DECODE, WIDE, replace(calm, itl_s=lone_s * (1 - HAIR))).met


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (replace(WIDE, max_num_seqs=100), 100.0),
        (replace(WIDE, max_kv_tokens=55_000), 50.0),
        (replace(WIDE, max_kv_tokens=500), 1.0),  # not even one fits: one runs all the same
    ],
)
def test_an_itl_that_cannot_be_met_is_sized_by_full_batches(limits, most):
    d = Demand(100.0, 1000.0, 200.0)
    found = decode_engines(d, DECODE, limits, replace(LOOSE, itl_s=0.001))
    engines = math.ceil(100.0 * 200.0 * (FIXED_S + PER_REQUEST_S * most) / most)
    assert found == Sizing(engines, 1.0, met=False)


def test_no_demand_takes_one_decode_engine_where_no_target_can_be_met():
    found = decode_engines(Demand(0.0, 1000.0, 200.0), DECODE, WIDE, replace(LOOSE, itl_s=0.001))
    assert found == Sizing(1, 1.0, met=False)


def test_contexts_of_less_than_a_token_are_one_token():
    found = decode_engines(
        Demand(10_000.0, 0.0, 1.0), DECODE, replace(WIDE, max_kv_tokens=10), replace(LOOSE, itl_s=0.001)
    )
    per_request_s = 50e-6 + 0.1e-6 * 0.5
    assert found.engines == math.ceil(10_000.0 * (FIXED_S + per_request_s * 10) / 10)


def test_what_decodes_now_is_spread_until_it_just_fits():
    step_s = FIXED_S + 50e-6 * 20.0 + 0.1e-6 * 20_000.0  # 60 requests with 60,000 tokens, on three engines
    for line in (DECODE, MIXED):  # no prompt is computed in it
        assert crowded_engines(60.0, 60_000.0, line, WIDE, step_s * (1 + HAIR)) == 3
        assert crowded_engines(60.0, 60_000.0, line, WIDE, step_s * (1 - HAIR)) == 4
    assert crowded_engines(60.0, 60_000.0, DECODE, replace(WIDE, max_kv_tokens=20_000), 1.0) == 3
    assert crowded_engines(60.0, 60_000.0, DECODE, replace(WIDE, max_num_seqs=20), 1.0) == 3


def test_nothing_that_decodes_needs_one_engine_and_three_requests_never_more_than_three():
    assert crowded_engines(0.0, 0.0, DECODE, WIDE, 1e-9) == 1
    assert crowded_engines(3.0, 3000.0, DECODE, WIDE, 1e-9) == 3


# -- both on one engine ------------------------------------------------------------------------------------------------

BOTH = Demand(100.0, 1000.0, 200.0, isl_cv2=2.0)
PRICE_S = 20e-6  # of a prompt token


def mixed(engines: int) -> tuple[float, float, float]:
    """(the crowded iteration, a prompt's own time, the share of requests that wait too long for 10 s)."""
    rate = BOTH.requests_per_s / engines
    prefill_busy, decode_busy = rate * 1000.0 * PRICE_S, rate * 200.0 * PER_REQUEST_S
    swollen = crowd(rate * 200.0 * FIXED_S / (1.0 - prefill_busy - decode_busy), BOTH)
    room = 2048.0 - swollen
    step_s = (FIXED_S + PER_REQUEST_S * swollen) / (1.0 - prefill_busy)
    own_s = math.ceil(1000.0 / room) * MIXED.at(min(1000.0, room), swollen, swollen * 1100.0)
    late = late_share(rate, 1000.0 / room * step_s, (1.0 / engines + BOTH.isl_cv2) / 2.0, 10.0 - own_s)
    return step_s, own_s, late


def test_aggregated_engines_are_the_fewest_whose_crowded_iteration_is_fast_enough():
    step_s, _, _ = mixed(8)
    found = agg_engines(BOTH, MIXED, WIDE, replace(LOOSE, itl_s=step_s * (1 + HAIR)))
    assert found == Sizing(8, pytest.approx(100.0 * 1000.0 * PRICE_S / 8, rel=1e-9))
    assert agg_engines(BOTH, MIXED, WIDE, replace(LOOSE, itl_s=step_s * (1 - HAIR))).engines == 9


def test_aggregated_engines_are_the_fewest_that_compute_a_prompt_in_time():
    _, own_s, _ = mixed(8)
    lenient = replace(LOOSE, late_share=1.0)
    assert agg_engines(BOTH, MIXED, WIDE, replace(lenient, ttft_s=own_s * (1 + HAIR))).engines == 8
    assert agg_engines(BOTH, MIXED, WIDE, replace(lenient, ttft_s=own_s * (1 - HAIR))).engines == 9


def test_aggregated_engines_are_the_fewest_with_few_enough_late():
    quick = replace(LOOSE, ttft_s=0.5)
    _, own_s, _ = mixed(8)
    rate = BOTH.requests_per_s / 8
    step_s, _, _ = mixed(8)
    swollen = (step_s * (1.0 - rate * 1000.0 * PRICE_S) - FIXED_S) / PER_REQUEST_S
    late = late_share(rate, 1000.0 / (2048.0 - swollen) * step_s, (1.0 / 8 + 2.0) / 2.0, 0.5 - own_s)
    assert agg_engines(BOTH, MIXED, WIDE, replace(quick, late_share=late * (1 + 1e-6))).engines == 8
    assert agg_engines(BOTH, MIXED, WIDE, replace(quick, late_share=late * (1 - 1e-6))).engines == 9


def test_an_aggregated_engine_whose_lone_request_misses_a_target_is_sized_by_its_prompts():
    lone_itl_s, lone_ttft_s = FIXED_S + PER_REQUEST_S, MIXED.at(1000.0, 1.0, 1100.0)
    few = replace(BOTH, requests_per_s=1e-6)
    calm = replace(LOOSE, batch_deviations=0.0, late_share=1.0)
    for just in (replace(calm, itl_s=lone_itl_s), replace(calm, ttft_s=lone_ttft_s)):
        loose = replace(just, itl_s=just.itl_s * (1 + HAIR), ttft_s=just.ttft_s * (1 + HAIR))
        assert agg_engines(few, MIXED, WIDE, loose).met
        tight = replace(just, itl_s=just.itl_s * (1 - HAIR), ttft_s=just.ttft_s * (1 - HAIR))
        assert agg_engines(few, MIXED, WIDE, tight) == Sizing(1, 1.0, met=False)
    slow = replace(calm, itl_s=0.001)
    assert agg_engines(BOTH, MIXED, WIDE, slow, backlog_per_s=55.0) == Sizing(4, 1.0, met=False)  # 155 x 0.020 = 3.1


@pytest.mark.parametrize("itl_s", [10.0, 0.001])
def test_no_demand_takes_one_aggregated_engine(itl_s):
    assert agg_engines(Demand(0.0, 1000.0, 200.0), MIXED, WIDE, replace(LOOSE, itl_s=itl_s)).engines == 1


@pytest.mark.parametrize("tokens", [0, 1])
def test_prompts_of_an_engine_that_admits_next_to_nothing_cost_what_its_first_token_does(tokens):
    bent = replace(MIXED, bend_tokens=1.0, per_token_beyond_bend_s=1.0)
    hopeless, limits = replace(LOOSE, itl_s=0.001), replace(WIDE, max_num_batched_tokens=tokens)
    assert agg_engines(replace(BOTH, requests_per_s=99.0), bent, limits, hopeless).engines == 2  # 99 x 0.020 = 1.98


# -- what is not said --------------------------------------------------------------------------------------------------


def test_prompts_whose_spread_is_unknown_vary_as_exponential_ones_and_nothing_is_cached_or_guessed():
    assert Demand(1.0, 1.0, 1.0) == Demand(1.0, 1.0, 1.0, isl_cv2=1.0, kv_hit_rate=None, accept_length=1.0)


@pytest.mark.parametrize(("hair", "engines"), [(-HAIR, 2), (HAIR, 3)])
def test_where_no_backlog_is_named_there_is_none(hair, engines):
    """At a demand that just fills two engines, where a request more or less would show."""
    hopeless = replace(LOOSE, ttft_s=0.020, itl_s=0.001)
    d = Demand(2 * 0.98 / 0.030 * (1 + hair), 1000.0, 200.0)
    assert prefill_engines(d, PREFILL, hopeless).engines == engines
    assert agg_engines(replace(d, requests_per_s=100.0 * (1 + hair)), MIXED, WIDE, hopeless).engines == engines
