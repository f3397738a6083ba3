"""Requests per second of one engine. The numbers are those of reference-semantics 3.9 unless a test says why not."""

import math

import pytest

from headrace.models.perf.capacity import Capacity, LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits
from headrace.schemas.base import AGG, DECODE, PREFILL


def of_prefill(model, limits, isl=1000.0, ttft_ms=500.0, **options) -> Capacity | None:
    return capacity(model, PREFILL, limits, RequestShape(isl, 200, **options), LatencyTargets(ttft_ms / 1000, 0.05))


def of_decode(model, limits, isl=1000.0, osl=200.0, itl_ms=50.0, **options) -> Capacity | None:
    return capacity(model, DECODE, limits, RequestShape(isl, osl, **options), LatencyTargets(0.5, itl_ms / 1000))


def of_agg(model, limits, isl=1000.0, osl=200.0, ttft_ms=500.0, itl_ms=50.0, **options) -> Capacity | None:
    return capacity(
        model, AGG, limits, RequestShape(isl, osl, **options), LatencyTargets(ttft_ms / 1000, itl_ms / 1000)
    )


@pytest.mark.parametrize(
    ("isl", "ttft_ms", "kv_hit_rate", "rps", "found_ms", "batch"),
    [
        (1000, 500, None, 40.0, 50, 2),
        (1000, 500, 0.5, 80.0, 50, 4),
        (1000, 40, None, 100 / 3, 30, 1),
        (3000, 500, None, 12.5, 80, 1),
        (300, 30, None, 107.142857, 28, 3),
        (10, 500, None, 4015.748031, 50.8, 204),
    ],
)
def test_prefill_capacity(prefill_model, limits, isl, ttft_ms, kv_hit_rate, rps, found_ms, batch):
    c = of_prefill(prefill_model, limits, isl, ttft_ms, kv_hit_rate=kv_hit_rate)
    assert (c.batch, c.meets_sla, c.itl_s) == (batch, True, None)
    assert c.requests_per_s == pytest.approx(rps, rel=1e-7)
    assert c.ttft_s == pytest.approx(found_ms / 1000, rel=1e-8)


@pytest.mark.parametrize(
    ("itl_ms", "accept", "rps", "found_ms", "batch"),
    [(50, 1, 23.1958763, 19.4, 90), (8, 1, 11.4213198, 7.88, 18), (8, 2, 42.8211587, 7.94, 68)],
)
def test_decode_capacity(decode_model, limits, itl_ms, accept, rps, found_ms, batch):
    c = of_decode(decode_model, limits, itl_ms=itl_ms, accept_length=accept)
    assert (c.batch, c.meets_sla, c.ttft_s) == (batch, True, None)
    assert c.requests_per_s == pytest.approx(rps, rel=1e-7)
    assert c.itl_s == pytest.approx(found_ms / 1000, rel=1e-8)


@pytest.mark.parametrize(
    ("options", "rps", "ttft_ms", "itl_ms"),
    [
        ({}, 18.8284519, 43.9, 23.9),
        ({"itl_ms": 20}, 17.8302361, 39.91, 19.91),
        ({"itl_ms": 20, "kv_hit_rate": 0.5}, 23.1958763, 29.4, 19.4),
        ({"itl_ms": 20, "accept_length": 2}, 27.3556231, 52.9, 16.45),
        ({"osl": 1, "itl_ms": 500}, 44.2477876, 70.4, 45.2),
    ],
)
def test_aggregated_capacity(agg_model, limits, options, rps, ttft_ms, itl_ms):
    c = of_agg(agg_model, limits, **options)
    assert c.meets_sla
    assert c.requests_per_s == pytest.approx(rps, rel=1e-7)
    assert (c.ttft_s, c.itl_s) == (pytest.approx(ttft_ms / 1000, rel=1e-8), pytest.approx(itl_ms / 1000, rel=1e-8))


# Reference weak spot 7: where no batch meets the SLA it answers with the highest throughput (40 rps at 50 ms; 23.2 at
# 19.4 ms; 18.8 at 43.9 and 23.9 ms), so that fewest replicas are asked for exactly when the SLA is tight.


def test_an_unreachable_ttft_gives_the_point_that_misses_it_least(prefill_model, limits):
    c = of_prefill(prefill_model, limits, ttft_ms=20)
    assert (c.batch, c.meets_sla) == (1, False)
    assert c.requests_per_s == pytest.approx(33.333333)
    assert c.ttft_s == pytest.approx(0.030)


def test_an_unreachable_itl_gives_the_point_that_misses_it_least(decode_model, limits):
    c = of_decode(decode_model, limits, itl_ms=5)
    assert (c.batch, c.meets_sla) == (1, False)
    assert c.requests_per_s == pytest.approx(0.9689922)
    assert c.itl_s == pytest.approx(0.00516)


def test_an_aggregated_engine_that_misses_both_gives_the_smaller_of_the_larger_misses(agg_model, limits):
    c = of_agg(agg_model, limits, ttft_ms=10, itl_ms=10)
    assert (c.batch, c.meets_sla) == (1, False)
    # b = 1: 5 prefill tokens an iteration; the next prompt's 1005 tokens take 5 + 20.1 + 0.11 ms
    assert c.requests_per_s == pytest.approx(0.9596929)
    assert (c.ttft_s, c.itl_s) == (pytest.approx(0.02521), pytest.approx(0.00521))


def test_a_role_is_held_to_its_own_sla_alone(prefill_model, decode_model, limits):
    assert capacity(prefill_model, PREFILL, limits, RequestShape(1000, 200), LatencyTargets(0.5, 1e-9)).meets_sla
    assert capacity(decode_model, DECODE, limits, RequestShape(1000, 200), LatencyTargets(1e-9, 0.05)).meets_sla


def test_no_sla_is_no_constraint(agg_model, limits):
    c = capacity(agg_model, AGG, limits, RequestShape(1000, 200), LatencyTargets(None, None))
    assert (c.batch, c.meets_sla) == (90, True)


def test_a_sla_that_is_just_met_is_met(prefill_model, limits):
    exactly = of_prefill(prefill_model, limits).ttft_s
    assert capacity(prefill_model, PREFILL, limits, RequestShape(1000, 1), LatencyTargets(exactly, None)).meets_sla


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, -math.inf])
def test_lengths_and_slas_that_cannot_be_give_no_estimate(
    prefill_model, decode_model, agg_model, limits, bad
):  # case T14
    assert of_prefill(prefill_model, limits, isl=bad) is None
    assert of_prefill(prefill_model, limits, ttft_ms=bad) is None
    assert of_decode(decode_model, limits, isl=bad) is None
    assert of_decode(decode_model, limits, osl=bad) is None
    assert of_decode(decode_model, limits, itl_ms=bad) is None
    assert of_agg(agg_model, limits, ttft_ms=bad) is None
    assert of_agg(agg_model, limits, itl_ms=bad) is None


def test_a_prefill_engine_does_not_care_about_output_length(prefill_model, limits):
    assert capacity(prefill_model, PREFILL, limits, RequestShape(1000, 0), LatencyTargets(0.5, None)).batch == 2


@pytest.mark.parametrize("role", [PREFILL, DECODE, AGG])
def test_a_request_that_does_not_fit_gives_no_estimate(prefill_model, decode_model, agg_model, limits, role):
    model = {PREFILL: prefill_model, DECODE: decode_model, AGG: agg_model}[role]
    assert capacity(model, role, limits, RequestShape(200_000, 100), LatencyTargets(0.5, 0.05)) is None


def test_the_largest_request_that_fits_runs_alone(decode_model, limits):
    c = of_decode(decode_model, limits, isl=99_900, osl=200, itl_ms=500)
    assert (c.batch, c.meets_sla) == (1, True)


@pytest.mark.parametrize("limit", ["max_num_batched_tokens", "max_num_seqs", "max_kv_tokens"])
def test_an_engine_that_admits_nothing_has_no_capacity(agg_model, limit):
    assert of_agg(agg_model, EngineLimits(**{limit: 0})) is None


def test_an_aggregated_engine_needs_a_token_for_prefill_beside_one_for_decode(agg_model):
    assert of_agg(agg_model, EngineLimits(max_num_batched_tokens=1)) is None


def test_an_aggregated_engine_whose_prompts_never_fit_into_an_iteration_has_no_capacity(agg_model):
    assert of_agg(agg_model, EngineLimits(max_num_batched_tokens=100), isl=5000, osl=1) is None


def test_a_model_that_is_not_ready_has_no_capacity(limits):
    for role in (PREFILL, DECODE, AGG):
        assert capacity(EngineModel(), role, limits, RequestShape(1000, 200), LatencyTargets(0.5, 0.05)) is None


def test_a_role_without_a_model_of_its_work_has_no_capacity(agg_model, limits):
    assert capacity(agg_model, "encoder", limits, RequestShape(1000, 200), LatencyTargets(0.5, 0.05)) is None
