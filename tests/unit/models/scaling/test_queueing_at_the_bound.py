"""Staffing, at the bound: the count that just keeps a target, by the formulas of docs/scaling.md worked out anew."""

import math
from dataclasses import replace
from statistics import NormalDist

import pytest

from headrace.models.perf.latency import EngineLimits
from headrace.models.perf.line import Line
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
)

PREFILL = Line(intercept_s=0.010, per_prefill_token_s=20e-6)
DECODE = Line(intercept_s=0.005, per_decode_request_s=50e-6, per_kv_token_s=0.1e-6)
MIXED = replace(DECODE, per_prefill_token_s=20e-6)
LINES = AggLines(DECODE, MIXED)
WIDE = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=10_000, max_kv_tokens=10**9)
LOOSE = Targets(ttft_s=10.0, itl_s=10.0, late_share=0.03)
CALM = replace(LOOSE, late_share=0.5)  # of half of the requests nobody asks: no deviation is kept room for
HAIR = 1e-9  # relative; what is that much beyond a target misses it
FIXED_S, PER_REQUEST_S = 0.005, 50e-6 + 0.1e-6 * 1100.0  # of DECODE at the context of 1000 + 200 / 2 tokens
KNEE = FIXED_S / PER_REQUEST_S  # a batch of 31

DEMANDS = [
    Demand(400.0, 1000.0, 200.0),
    Demand(400.0, 1000.0, 200.0, isl_cv2=4.0, accept_length=2.0),
    Demand(400.0, 1000.0, 200.0, dispersion=7.0, dispersion_s=60.0),
    Demand(1.0, 1000.0, 200.0, isl_cv2=0.0),
    Demand(0.2, 1000.0, 200.0),  # a batch below one: it swells as one would
]


def crowd(batch: float, step_s: float, d: Demand) -> float:
    """The mean over a stay of arrivals that vary over it, each of its own length."""
    bursts = 1.0 + (d.dispersion - 1.0) * min(1.0, step_s * d.osl / d.accept_length / d.dispersion_s)
    unequal = 1.0 + d.isl_cv2 * (1000.0 / 1100.0) ** 2
    return batch + NormalDist().inv_cdf(0.97) * math.sqrt(max(1.0, batch) * bursts * unequal * 2.0 / math.e)


def swollen(d: Demand, engines: int) -> float:
    """Little's law: iterations take the longer the more requests are in them."""
    steps = d.requests_per_s * d.osl / d.accept_length / engines
    step_s = FIXED_S / (1.0 - steps * PER_REQUEST_S)
    return crowd(steps * step_s, step_s, d)


def at_seventy_per_cent(d: Demand) -> int:
    return max(1, math.ceil(d.requests_per_s * d.osl / d.accept_length * PER_REQUEST_S / 0.7))


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_where_there_is_no_slack_late_is_whoever_waits():
    assert late_share(0.5, 1.0, 1.0, 0.0) == 0.5
    assert late_share(0.5, 1.0, 1.0, -0.5) == 0.5


def test_an_engine_is_overloaded_from_98_per_cent_on():
    assert late_share(0.98, 1.0, 1.0, 100.0) == 1.0
    assert late_share(0.9799, 1.0, 1.0, 100.0) < 1.0


def test_an_engine_that_takes_no_time_makes_nobody_late():
    assert late_share(10.0, 0.0, 1.0, 0.0) == 0.0


@pytest.mark.parametrize(
    "d",
    [
        Demand(100.0, 1000.0, 200.0),
        Demand(100.0, 1000.0, 200.0, isl_cv2=3.0),
        Demand(100.0, 1000.0, 200.0, dispersion=9.0, dispersion_s=0.5),
    ],
)
def test_prefill_engines_are_the_fewest_with_few_enough_late(d):
    """Six engines get every sixth arrival each; a prompt longer than the mean takes half a mean more."""
    service_s, idle = 0.030, 0.5
    bursts = 1.0 + (d.dispersion - 1.0) * min(1.0, service_s / idle**2 / d.dispersion_s)
    late = late_share(100.0 / 6, service_s, (bursts / 6 + d.isl_cv2) / 2.0, 0.100 - 1.5 * service_s)
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
    free = replace(DECODE, intercept_s=0.0)
    steps = 0.98 * 99_990 / PER_REQUEST_S
    assert decode_engines(Demand(steps / 200.0 * 1.001, 1000.0, 200.0), free, WIDE, LOOSE).engines == 100_000
    assert crowded_engines(10**6, 10**6, DECODE, WIDE, 1e-9) == 100_000
    assert agg_engines(Demand(99_990 / 0.020, 1000.0, 200.0), LINES, WIDE, LOOSE).engines == 100_000


# -- crowding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", DEMANDS)
def test_decode_engines_are_the_fewest_whose_crowded_batch_is_fast_enough(d):
    engines = at_seventy_per_cent(d)
    step_s = FIXED_S + PER_REQUEST_S * swollen(d, engines)
    just = replace(LOOSE, itl_s=step_s / d.accept_length * (1 + HAIR))
    steps_per_s = d.requests_per_s * d.osl / d.accept_length
    busy = pytest.approx(steps_per_s * PER_REQUEST_S / engines, rel=1e-9)
    assert decode_engines(d, DECODE, WIDE, just) == Sizing(engines, busy)
    tighter = replace(just, itl_s=step_s / d.accept_length * (1 - HAIR))
    assert decode_engines(d, DECODE, WIDE, tighter).engines == engines + 1


@pytest.mark.parametrize("d", DEMANDS)
def test_decode_engines_have_room_for_the_crowded_batch(d):
    engines = at_seventy_per_cent(d)
    batch = swollen(d, engines)
    for name, needed in (("max_num_seqs", batch), ("max_kv_tokens", batch * 1100.0)):
        assert decode_engines(d, DECODE, replace(WIDE, **{name: math.ceil(needed)}), LOOSE).engines == engines
        assert decode_engines(d, DECODE, replace(WIDE, **{name: math.floor(needed)}), LOOSE).engines > engines


def test_a_decode_engine_is_never_planned_busier_than_98_per_cent():
    full, free = 0.98 / PER_REQUEST_S / 200.0, replace(DECODE, intercept_s=0.0)
    assert decode_engines(Demand(full * (1 - 1e-6), 1000.0, 200.0), free, WIDE, LOOSE).engines == 1
    assert decode_engines(Demand(full * (1 + 1e-6), 1000.0, 200.0), free, WIDE, LOOSE).engines == 2


def test_a_lone_request_that_just_meets_the_target_meets_it():
    few, lone_s = Demand(1e-6, 1000.0, 200.0), FIXED_S + PER_REQUEST_S
    assert decode_engines(few, DECODE, WIDE, replace(CALM, itl_s=lone_s * (1 + HAIR))).met
    assert not decode_engines(few, DECODE, WIDE, replace(CALM, itl_s=lone_s * (1 - HAIR))).met


@pytest.mark.parametrize(
    ("limits", "batch"),
    [
        (WIDE, KNEE),
        (replace(WIDE, max_num_seqs=20), 20.0),
        (replace(WIDE, max_kv_tokens=11_000), 10.0),
        (replace(WIDE, max_kv_tokens=500), 1.0),  # not even one fits: one runs all the same
    ],
)
def test_an_itl_that_cannot_be_met_is_sized_by_the_batch_of_best_power(limits, batch):
    found = decode_engines(Demand(990.0, 1000.0, 200.0), DECODE, limits, replace(LOOSE, itl_s=0.001))
    assert found == Sizing(math.ceil(198_000.0 * (FIXED_S + PER_REQUEST_S * batch) / batch), 1.0, met=False)


def test_no_demand_takes_one_decode_engine_where_no_target_can_be_met():
    found = decode_engines(Demand(0.0, 1000.0, 200.0), DECODE, WIDE, replace(LOOSE, itl_s=0.001))
    assert found == Sizing(1, 1.0, met=False)


def test_contexts_of_less_than_a_token_are_one_token():
    limits, hopeless = replace(WIDE, max_kv_tokens=10), replace(LOOSE, itl_s=0.001)
    found = decode_engines(Demand(10_000.0, 0.0, 1.0), DECODE, limits, hopeless)
    assert found.engines == math.ceil(10_000.0 * (FIXED_S + (50e-6 + 0.1e-6 * 0.5) * 10) / 10)


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
PROMPT_S = 0.020


def mixed(engines: int) -> tuple[float, float]:
    """(the crowded iteration, a prompt's own time)."""
    rate = BOTH.requests_per_s / engines
    steps = rate * 200.0
    step_s = FIXED_S / (1.0 - rate * PROMPT_S - steps * PER_REQUEST_S)
    crowded_s = (FIXED_S + PER_REQUEST_S * crowd(steps * step_s, step_s, BOTH)) / (1.0 - rate * PROMPT_S)
    return crowded_s, PROMPT_S + crowded_s


def test_aggregated_engines_are_the_fewest_whose_crowded_iteration_is_fast_enough():
    crowded_s, _ = mixed(8)
    busy = pytest.approx((100.0 * PROMPT_S + 20_000.0 * PER_REQUEST_S) / 8, rel=1e-9)
    assert agg_engines(BOTH, LINES, WIDE, replace(LOOSE, itl_s=crowded_s * (1 + HAIR))) == Sizing(8, busy)
    assert agg_engines(BOTH, LINES, WIDE, replace(LOOSE, itl_s=crowded_s * (1 - HAIR))).engines == 9


def test_aggregated_engines_are_the_fewest_with_few_enough_late():
    _, own_s = mixed(8)
    rate = BOTH.requests_per_s / 8
    late = late_share(rate, PROMPT_S, (1.0 / 8 + BOTH.isl_cv2) / 2.0, 0.03)
    just = replace(LOOSE, ttft_s=own_s + 0.03)
    wanted = agg_engines(BOTH, LINES, WIDE, just).engines
    assert late > LOOSE.late_share
    assert wanted > 8


@pytest.mark.parametrize("itl_s", [10.0, 0.001])
def test_no_demand_takes_one_aggregated_engine(itl_s):
    assert agg_engines(Demand(0.0, 1000.0, 200.0), LINES, WIDE, replace(LOOSE, itl_s=itl_s)).engines == 1


def test_an_aggregated_engine_whose_lone_request_misses_a_target_is_sized_by_prompts_and_the_best_batch():
    hopeless = replace(LOOSE, itl_s=0.001)
    busy = 100.0 * PROMPT_S + 20_000.0 * (FIXED_S + PER_REQUEST_S * KNEE) / KNEE
    assert agg_engines(BOTH, LINES, WIDE, hopeless) == Sizing(math.ceil(busy / 0.98), 1.0, met=False)
    assert agg_engines(BOTH, LINES, WIDE, hopeless, backlog_per_s=995.0).engines == 22


def test_a_prompt_is_cut_into_the_chunks_that_an_iteration_admits_and_each_pays_for_itself():
    apart = AggLines(DECODE, replace(MIXED, intercept_s=0.006))  # a millisecond more where a prompt is computed
    limits = replace(WIDE, max_num_batched_tokens=400)
    assert apart.prompt_s(1000.0, 1100.0, limits) == pytest.approx(3 * 0.001 + 0.020)
    assert apart.prompt_s(1000.0, 1100.0, replace(limits, max_num_batched_tokens=0)) == pytest.approx(
        1000 * 0.001 + 0.020
    )
    assert apart.prompt_s(0.0, 1100.0, limits) == pytest.approx(0.001)
    assert AggLines(DECODE, DECODE).prompt_s(1000.0, 1100.0, limits) == pytest.approx(3 * 1e-6)


# -- what is not said --------------------------------------------------------------------------------------------------


def test_a_demand_of_which_nothing_is_said_is_poisson_with_exponential_prompts_and_nothing_is_cached_or_guessed():
    said = Demand(1.0, 1.0, 1.0, isl_cv2=1.0, kv_hit_rate=None, accept_length=1.0, dispersion=1.0, dispersion_s=5.0)
    assert Demand(1.0, 1.0, 1.0) == said


def test_bursts_are_felt_in_proportion_to_the_time_up_to_that_in_which_they_were_measured():
    bursty = Demand(1.0, 1.0, 1.0, dispersion=3.0, dispersion_s=5.0)
    assert [bursty.dispersion_over(s) for s in (0.0, 2.5, 5.0, 50.0)] == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(("hair", "engines"), [(-HAIR, 2), (HAIR, 3)])
def test_where_no_backlog_is_named_there_is_none(hair, engines):
    """At a demand that just fills two engines, where a request more or less would show."""
    d = Demand(2 * 0.98 / 0.030 * (1 + hair), 1000.0, 200.0)
    assert prefill_engines(d, PREFILL, replace(LOOSE, ttft_s=0.020)).engines == engines
