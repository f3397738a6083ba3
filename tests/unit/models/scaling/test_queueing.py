"""Staffing: how many engines keep the SLA for most requests."""

import math
from dataclasses import replace

import pytest
from staffing import DECODE, LIMITS, LINES, MIXED, PREFILL, TARGETS

from headrace.models.scaling.mix import UNKNOWN, Mix
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

DEMAND = Demand(requests_per_s=20.0, isl=1000.0, osl=200.0, mix=Mix())  # prompts of one length


def prefill(d: Demand, t: Targets, backlog_per_s: float = 0.0) -> Sizing:
    return prefill_engines(d, prefill_service(d, PREFILL, LIMITS), t, backlog_per_s)


def test_the_wait_of_an_m_m_1_queue_is_the_textbooks() -> None:
    # ca2 = cs2 = 1: P(wait > t) = r exp(-t (1 - r) / S) exactly
    assert late_share(8.0, 0.1, 1.0, 0.25) == pytest.approx(0.8 * math.exp(-0.25 * 0.2 / 0.1))


def test_an_overloaded_engine_makes_everybody_late_and_an_idle_one_nobody() -> None:
    assert late_share(10.0, 0.1, 1.0, 1.0) == 1.0
    assert late_share(0.0, 0.1, 1.0, 0.0) == 0.0


def test_prefill_is_never_planned_at_full_utilisation() -> None:
    # One engine does 33.3 requests/s flat out; the reference would plan 33 on one engine.
    found = prefill(replace(DEMAND, requests_per_s=33.0), TARGETS)
    assert found.engines == 2
    assert found.utilisation == pytest.approx(33.0 * 0.030 / 2)


def test_a_backlog_asks_for_engines_beside_the_arrivals() -> None:
    assert prefill(DEMAND, TARGETS, backlog_per_s=100.0).engines == math.ceil(120.0 * 0.030)


def test_a_prompt_that_misses_its_target_alone_is_sized_by_load_and_said() -> None:
    found = prefill(DEMAND, replace(TARGETS, ttft_s=0.020))
    assert not found.met
    assert found.engines == 1


def test_cached_prompts_need_fewer_prefill_engines_and_no_fewer_decode_engines() -> None:
    busy = replace(DEMAND, requests_per_s=70.0)
    cached = replace(busy, kv_hit_rate=0.5)
    assert prefill(cached, TARGETS).engines < prefill(busy, TARGETS).engines
    assert decode_engines(cached, DECODE, LIMITS, TARGETS) == decode_engines(busy, DECODE, LIMITS, TARGETS)


def test_a_decode_batch_is_the_fixed_point_of_littles_law_and_of_iteration_time() -> None:
    # b = rate x osl x t and t = 5 ms + 0.16 ms b: at 20 requests/s t = 5 / (1 - 0.64) ms = 13.9 ms, b = 55.6
    tight = replace(TARGETS, late_share=0.5)  # half of the requests find more than the mean
    assert decode_engines(DEMAND, DECODE, LIMITS, replace(tight, itl_s=0.0139)).engines == 1
    assert decode_engines(DEMAND, DECODE, LIMITS, replace(tight, itl_s=0.0138)).engines == 2


def test_a_batch_that_swells_needs_room() -> None:
    calm, wild = (replace(TARGETS, itl_s=0.015, late_share=share) for share in (0.5, 0.001))
    assert decode_engines(DEMAND, DECODE, LIMITS, calm).engines < decode_engines(DEMAND, DECODE, LIMITS, wild).engines


def test_kv_and_batch_limits_bind_where_time_does_not() -> None:
    lax = replace(TARGETS, itl_s=1.0)
    assert decode_engines(DEMAND, DECODE, LIMITS, lax).engines == 1
    assert decode_engines(DEMAND, DECODE, replace(LIMITS, max_kv_tokens=40_000), lax).engines == 2
    assert decode_engines(DEMAND, DECODE, replace(LIMITS, max_num_seqs=40), lax).engines == 2


def test_speculation_halves_the_iterations() -> None:
    fast = replace(DEMAND, requests_per_s=60.0, accept_length=2.0)
    slow = replace(fast, accept_length=1.0)
    assert decode_engines(fast, DECODE, LIMITS, TARGETS).engines < decode_engines(slow, DECODE, LIMITS, TARGETS).engines


def test_an_itl_below_a_lone_requests_is_sized_by_load_and_said() -> None:
    found = decode_engines(DEMAND, DECODE, LIMITS, replace(TARGETS, itl_s=0.004))
    assert not found.met
    assert found.engines >= 1


def test_what_decodes_now_is_spread_until_it_is_fast_enough() -> None:
    # 100 requests of 1,100 tokens: 5 + 5 + 11 = 21 ms on one engine, 13 ms on two
    assert crowded_engines(100.0, 110_000.0, DECODE, LIMITS, 0.020) == 2
    assert crowded_engines(100.0, 110_000.0, DECODE, LIMITS, 0.022) == 1
    assert crowded_engines(3.0, 3_000.0, DECODE, LIMITS, 0.001) == 3  # no more than there are requests


def test_an_aggregated_engine_pays_for_prompts_and_batch_together() -> None:
    both = agg_engines(DEMAND, LINES, LIMITS, TARGETS)
    assert both.met
    assert both.engines > decode_engines(DEMAND, DECODE, LIMITS, TARGETS).engines


def test_a_share_is_as_many_deviations_as_a_normal_variable_exceeds_with_it() -> None:
    assert replace(TARGETS, late_share=0.5).deviations == pytest.approx(0.0)
    assert replace(TARGETS, late_share=0.158_655).deviations == pytest.approx(1.0, abs=1e-5)


def test_bursts_count_for_the_part_of_them_that_fits_into_the_time_asked_for() -> None:
    bursty = replace(DEMAND, dispersion=3.0, dispersion_s=5.0)
    assert bursty.dispersion_over(0.0) == 1.0
    assert bursty.dispersion_over(2.5) == pytest.approx(2.0)
    assert bursty.dispersion_over(60.0) == 3.0
    assert DEMAND.dispersion_over(2.5) == 1.0


def test_bursty_arrivals_need_more_engines_than_the_same_number_evenly() -> None:
    busy = replace(DEMAND, requests_per_s=200.0)
    bursty = replace(busy, dispersion=40.0)
    soon = replace(TARGETS, ttft_s=0.1)
    assert prefill(bursty, soon).engines > prefill(busy, soon).engines
    tight = replace(TARGETS, itl_s=0.010)
    assert decode_engines(bursty, DECODE, LIMITS, tight).engines > decode_engines(busy, DECODE, LIMITS, tight).engines


def test_a_crowded_batch_is_mean_and_deviations_of_a_stay() -> None:
    # one engine: t = 13.9 ms, b = 55.6, a stay of 2.8 s; a share of 0.1587 is one deviation of
    # sqrt(55.6 x (1 + 1 x (1000 / 1100)^2) x 2/e) = 8.6, so 5 + 0.16 x 64.2 = 15.3 ms
    one = replace(TARGETS, late_share=0.158_655)
    unequal = replace(DEMAND, mix=Mix((0.0, 2.0), (0.5, 0.5)))
    assert decode_engines(unequal, DECODE, LIMITS, replace(one, itl_s=0.0154)).engines == 1
    assert decode_engines(unequal, DECODE, LIMITS, replace(one, itl_s=0.0151)).engines == 2


def test_a_target_that_nothing_meets_is_sized_at_the_knee_of_the_batch() -> None:
    # 5 ms fixed and 0.16 ms a request: the knee is a batch of 31.25, 10 ms an iteration; 4,000 steps/s x 10 / 31.25
    assert decode_engines(DEMAND, DECODE, LIMITS, replace(TARGETS, itl_s=0.004)).engines == 2
    found = agg_engines(DEMAND, LINES, LIMITS, replace(TARGETS, itl_s=0.004))
    assert not found.met
    assert found.engines >= 2


def test_prompts_of_an_aggregated_engine_stretch_decoding_and_do_not_make_every_iteration_slow() -> None:
    # A pass with a prompt has 20 ms of its own, a decoding one 5 ms: read as the cost of every iteration, no batch
    # would meet 15 ms, though at 20 requests/s on 4 engines prompts take a fifth of the time.
    mixed = replace(MIXED, intercept_s=0.025)
    found = agg_engines(DEMAND, AggLines(DECODE, mixed), LIMITS, replace(TARGETS, itl_s=0.015, late_share=0.3))
    assert found.met
    assert 2 <= found.engines <= 5


def test_a_prompt_in_chunks_pays_for_every_pass() -> None:
    lines = AggLines(DECODE, replace(MIXED, intercept_s=0.025))
    whole = lines.prompt_s(2000.0, 1100.0, LIMITS)
    assert whole == pytest.approx(0.020 + 2000 * 20e-6)
    assert lines.prompt_s(4000.0, 1100.0, LIMITS) == pytest.approx(2 * whole)


def test_a_prompt_that_no_fleet_saves_is_said_and_the_rest_is_sized_for() -> None:
    # A tenth of the prompts takes 91 ms and 1,000 tokens are 30 ms on average: 50 ms are out of its reach alone.
    mix = Mix.of([550.0, 5050.0], [9, 1])
    unequal = replace(DEMAND, requests_per_s=60.0, mix=mix)
    found = prefill(unequal, replace(TARGETS, ttft_s=0.050))
    assert found.out_of_reach == pytest.approx(0.1)
    assert not found.met  # 3 % may miss
    assert found.engines > prefill(unequal, replace(TARGETS, ttft_s=0.500)).engines
    assert prefill(unequal, replace(TARGETS, ttft_s=0.050, late_share=0.2)).met


def test_a_mean_prompt_that_misses_does_not_give_up_on_the_short_ones() -> None:
    mix = Mix.of([100.0, 10_000.0], [80, 20])  # 2,080 tokens and 52 ms on average, beyond 40 ms
    d = replace(DEMAND, isl=2080.0, mix=mix)
    found = prefill(d, replace(TARGETS, ttft_s=0.040, late_share=0.25))
    assert found.met
    assert found.engines > d.requests_per_s * 0.0636  # 52 ms, and 10 ms for each further chunk of the long ones


def test_chunks_make_prompts_cost_more_than_one_of_their_mean_length() -> None:
    d = replace(DEMAND, requests_per_s=100.0, mix=Mix.of([200.0, 9200.0], [8, 1]), isl=1200.0)
    service = prefill_service(d, PREFILL, LIMITS)
    # the long one is five iterations: 5 x 10 ms + 184 ms; a short one 14 ms
    assert service.mean_s == pytest.approx((8 * 0.014 + 0.234) / 9)
    assert service.mean_s > PREFILL.at(1200.0)
    assert prefill(d, TARGETS).utilisation == pytest.approx(100.0 * service.mean_s / prefill(d, TARGETS).engines)


def test_unequal_prompts_need_more_prefill_engines_than_equal_ones() -> None:
    busy = replace(DEMAND, requests_per_s=100.0)
    wild = replace(busy, mix=Mix.of([200.0, 9200.0], [8, 1]))
    soon = replace(TARGETS, ttft_s=0.35)
    assert prefill(wild, soon).engines > prefill(busy, soon).engines


def test_a_decoding_request_is_rather_one_with_a_long_answer() -> None:
    # answers of 100 and 300, each half: who is found decoding has one of (100^2 + 300^2) / 400 = 250, half of it done
    assert replace(DEMAND, osl_cv2=0.25).context == 1000.0 + 125.0
    assert DEMAND.context == 1100.0
    assert replace(DEMAND, osl_cv2=0.25, held=1500.0).context == 1500.0


def test_a_full_cache_is_not_averaged_over_a_stay() -> None:
    # 55.6 requests of 1,100 tokens on average and 2.33 deviations more of sqrt(55.6) = 7.5 of them: 80,300 tokens
    lax = replace(TARGETS, itl_s=1.0, late_share=0.5)
    assert decode_engines(DEMAND, DECODE, replace(LIMITS, max_kv_tokens=80_500), lax).engines == 1
    assert decode_engines(DEMAND, DECODE, replace(LIMITS, max_kv_tokens=80_000), lax).engines == 2


def test_lengths_that_nobody_measured_are_taken_as_exponential() -> None:
    assert Demand(20.0, 1000.0, 200.0).mix == UNKNOWN


def test_arrivals_and_prompts_like_clockwork_wait_for_nothing() -> None:
    assert late_share(8.0, 0.1, 0.0, 0.0) == 0.0
