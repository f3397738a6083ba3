"""Latency and capacity at the bounds: one token, one request, one engine's whole budget."""

from dataclasses import replace

import pytest

from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits, EngineLoad, itl_s, ttft_s
from headrace.schemas.base import AGG, DECODE, PREFILL

ANY = LatencyTargets()
WIDE = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=10_000, max_kv_tokens=10**9)


def prefill_s(tokens: float) -> float:
    return 0.010 + 20e-6 * tokens


def aggregated(prompt: int | None = None) -> EngineModel:
    """Prompts alone take 1 s, batches alone 2 s, both together 3 s, whatever their size, or with `prompt` tokens."""
    model = EngineModel()
    for i in range(6):
        model.learn([1], [50 + 50 * i], [0], [0], [1.0])
        model.learn([0], [0], [1 + i], [1000 * (1 + i)], [2.0])
        model.learn([1], [50 + 50 * i if prompt is None else prompt], [1 + i], [1000 * (1 + i)], [3.0])
    return model


# -- loads -------------------------------------------------------------------------------------------------------------


def test_a_load_that_is_not_scaled_stays_as_it_is():
    load = EngineLoad(1, 2, 3, 4, 5, 6, 7, 8)
    assert load.scaled() == load


# -- time to first token -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_once", "expected_s"), [(1, 3 * prefill_s(1)), (2, prefill_s(2) + prefill_s(1)), (0, None)]
)
def test_an_engine_that_admits_one_token_computes_one_after_the_other(prefill_model, at_once, expected_s):
    limits = EngineLimits(max_num_batched_tokens=at_once)
    found = ttft_s(prefill_model, PREFILL, EngineLoad(queued_prefill_tokens=3), limits, add_next_request=False)
    assert found == (None if expected_s is None else pytest.approx(expected_s))


def test_one_token_is_work_and_none_is_not(prefill_model):
    one = ttft_s(prefill_model, PREFILL, EngineLoad(queued_prefill_tokens=1), WIDE, add_next_request=False)
    assert one == pytest.approx(prefill_s(1))
    assert ttft_s(EngineModel(), PREFILL, EngineLoad(), WIDE, add_next_request=False) == 0.0


@pytest.mark.parametrize(
    ("load", "expected_s"),
    [
        (EngineLoad(), 1.0),
        (EngineLoad(scheduled_decode_requests=1), 3.0),
        (EngineLoad(scheduled_decode_kv_tokens=1), 3.0),
    ],
)
def test_one_request_or_one_token_that_decodes_is_a_load_beside_a_prompt(load, expected_s):
    assert ttft_s(aggregated(), AGG, load, WIDE) == pytest.approx(expected_s)


# -- inter-token latency -----------------------------------------------------------------------------------------------


def test_an_aggregated_engine_that_never_prefills_decodes_as_a_decode_engine(decode_model):
    load = EngineLoad(scheduled_decode_requests=4, scheduled_decode_kv_tokens=4000)
    assert itl_s(decode_model, AGG, load) == itl_s(decode_model, DECODE, load)


def test_one_prompt_token_an_iteration_is_a_prompt_beside_the_batch():
    assert itl_s(aggregated(prompt=1), AGG, EngineLoad()) == pytest.approx(3.0)


# -- capacity ----------------------------------------------------------------------------------------------------------


def test_where_nothing_is_cached_or_guessed_nothing_is_said():
    assert RequestShape(1000.0, 200.0) == RequestShape(1000.0, 200.0, kv_hit_rate=None, accept_length=1.0)


@pytest.mark.parametrize("role", [PREFILL, DECODE])
def test_an_engine_that_admits_one_request_has_the_capacity_of_one(role, prefill_model, decode_model):
    model = {PREFILL: prefill_model, DECODE: decode_model}[role]
    shape = RequestShape(1000.0, 200.0)
    one = capacity(model, role, replace(WIDE, max_num_seqs=1), shape, ANY)
    assert one is not None
    assert one.batch == 1
    assert capacity(model, role, replace(WIDE, max_num_seqs=0), shape, ANY) is None
    assert capacity(model, role, replace(WIDE, max_num_batched_tokens=1), shape, ANY) is not None
    assert capacity(model, role, replace(WIDE, max_num_batched_tokens=0), shape, ANY) is None


@pytest.mark.parametrize(
    ("isl", "expected_s"),
    [(1, prefill_s(1)), (2048, prefill_s(2048)), (2049, prefill_s(2048) + prefill_s(1)), (4096, 2 * prefill_s(2048))],
)
def test_the_last_chunk_of_a_prompt_costs_what_is_in_it_and_nothing_where_there_is_none(prefill_model, isl, expected_s):
    found = capacity(prefill_model, PREFILL, replace(WIDE, max_num_seqs=1), RequestShape(float(isl), 1.0), ANY)
    assert found is not None
    assert found.ttft_s == pytest.approx(expected_s)


def test_an_aggregated_engine_of_two_tokens_prefills_one_beside_the_one_that_decodes(agg_model):
    found = capacity(agg_model, AGG, replace(WIDE, max_num_batched_tokens=2), RequestShape(1.0, 10.0), ANY)
    assert found is not None
    assert found.batch == 1
    assert capacity(agg_model, AGG, replace(WIDE, max_num_batched_tokens=1), RequestShape(1.0, 10.0), ANY) is None


def test_the_largest_batch_is_what_is_admitted_and_no_more(decode_model, agg_model):
    most = capacity(decode_model, DECODE, replace(WIDE, max_num_seqs=1000), RequestShape(1000.0, 200.0), ANY)
    assert most is not None
    assert most.batch == 1000


def test_beside_a_prompt_token_all_but_one_of_the_budget_may_decode(agg_model):
    """129 of 130, of which 128 sizes are looked at: all but 128, so that 127 is the largest below the target."""
    line = agg_model.line(Kind.MIXED)
    context = 1 + 1000 // 2
    limits, shape = replace(WIDE, max_num_batched_tokens=130), RequestShape(1.0, 1000.0)
    found = capacity(agg_model, AGG, limits, shape, LatencyTargets(None, line.at(1.0, 128.5, 128.5 * context)))
    assert found is not None
    assert found.batch == 127


def test_an_engine_of_less_than_a_request_a_second_is_still_held_to_its_target():
    model = EngineModel()
    loads = (1, 2, 4, 8, 16)
    model.learn([0] * 5, [0] * 5, loads, [1000 * n for n in loads], [1.0 + 0.1 * n for n in loads])
    found = capacity(
        model, DECODE, replace(WIDE, max_num_seqs=16), RequestShape(900.0, 200.0), LatencyTargets(None, 1.45)
    )
    assert found is not None
    assert (found.batch, found.meets_sla) == (4, True)
    assert found.requests_per_s < 1.0
