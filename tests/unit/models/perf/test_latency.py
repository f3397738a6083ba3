"""Time to first token and between tokens; the numbers of reference-semantics 3.9 unless a test says why not."""

import math

import pytest

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.latency import EngineLimits, EngineLoad, cached_share, itl_s, ttft_s
from headrace.schemas.base import AGG, DECODE, PREFILL

IDLE = EngineLoad()
QUEUE = EngineLoad(queued_prefill_requests=2, queued_prefill_tokens=3000)
BUSY = EngineLoad(scheduled_decode_requests=10, scheduled_decode_kv_tokens=10_000)
BUSIER = EngineLoad(
    scheduled_decode_requests=10,
    scheduled_decode_kv_tokens=10_000,
    queued_decode_requests=2,
    queued_decode_kv_tokens=3000,
)


@pytest.mark.parametrize(
    ("tokens", "options", "expected_s"),
    [
        (0, {}, 0.0304),
        (3000, {}, 0.1004),
        (3000, {"kv_hit_rate": 0.5}, 0.0502),
        (3000, {"kv_hit_rate": 1.0}, 0.01404),  # 4020 x 0.05 is a hair above 201: 202 whole tokens
        (3000, {"kv_hit_rate": math.nan}, 0.1004),
        (3000, {"kv_hit_rate": -0.5}, 0.1004),
        (4500, {}, 0.1404),
        (10_000, {}, 0.2804),
        (0, {"add_next_request": False}, 0.0),
        (1000, {"add_next_request": False}, 0.030),
    ],
)
def test_ttft_of_a_prefill_engine(prefill_model, limits, tokens, options, expected_s):
    load = EngineLoad(queued_prefill_tokens=tokens)
    assert ttft_s(prefill_model, PREFILL, load, limits, **options) == pytest.approx(expected_s, rel=1e-9, abs=1e-12)


def test_a_hit_rate_discounts_the_whole_prefill_and_no_more_than_all_but_a_twentieth():  # case T19
    model = EngineModel()
    model.learn([1] * 5, [1000] * 5, [0] * 5, [0] * 5, [0.01] * 5)
    assert model.mean_isl == 1000
    load, limits = EngineLoad(queued_prefill_tokens=1000), EngineLimits()
    one = model.wall_time_s(prefill_tokens=1000)
    assert ttft_s(model, PREFILL, load, limits, kv_hit_rate=0.5) == one
    assert ttft_s(model, PREFILL, load, limits, kv_hit_rate=1.3) == model.wall_time_s(prefill_tokens=101)
    assert cached_share(1.3) == 0.95


def test_a_hit_rate_never_discounts_decode(agg_model, limits):  # case T19
    full = ttft_s(agg_model, AGG, BUSY, limits, kv_hit_rate=0.5, add_next_request=True)
    # ceil(608.33 / 2) = 305 tokens at 0.02 ms beside the whole 10,000 tokens of context
    assert full == pytest.approx((5 + 0.02 * 305 + 0.0001 * 10_000) / 1000)


def test_ttft_of_an_aggregated_engine_counts_its_decode_load_in_every_chunk(agg_model, limits):
    load = EngineLoad(**{**_fields(QUEUE), "scheduled_decode_requests": 10, "scheduled_decode_kv_tokens": 10_000})
    assert ttft_s(agg_model, AGG, load, limits) == pytest.approx(0.08418, rel=1e-9)


def test_an_aggregated_engine_without_decode_load_has_a_ttft_too(
    agg_model, limits
):  # reference weak spot 2: None there
    # ceil(3608.33) = 3609 tokens: a chunk of 2048 and one of 1561, each with the fixed 5 ms
    expected = (5 + 0.02 * 2048 + 5 + 0.02 * 1561) / 1000
    assert ttft_s(agg_model, AGG, QUEUE, limits) == pytest.approx(expected, rel=1e-9)


def test_queued_decode_counts_for_ttft_only_when_asked(agg_model, limits):
    without = ttft_s(agg_model, AGG, BUSIER, limits)
    with_it = ttft_s(agg_model, AGG, BUSIER.admitted(), limits)
    assert with_it - without == pytest.approx(0.0001 * 3000 / 1000)


def test_a_prefill_engine_has_no_itl_and_a_decode_engine_no_ttft(prefill_model, decode_model, limits):
    assert itl_s(prefill_model, PREFILL, BUSY) is None
    assert ttft_s(decode_model, DECODE, QUEUE, limits) is None


@pytest.mark.parametrize(
    ("load", "options", "expected_s"),
    [
        (IDLE, {}, 0.0051417),
        (BUSY, {}, 0.0066417),
        (BUSIER, {}, 0.0070417),
        (BUSIER.scaled(decode=2.0), {}, 0.0089417),
        (BUSIER.admitted().scaled(decode=2.0), {}, 0.0089417),
        (BUSIER, {"accept_length": 2.0}, 0.0070417 / 2),
        (BUSIER, {"accept_length": 0.5}, 0.0070417),
        (BUSIER, {"accept_length": math.nan}, 0.0070417),
        (IDLE, {"add_next_request": False}, 0.0),
    ],
)
def test_itl_of_a_decode_engine(decode_model, load, options, expected_s):
    assert itl_s(decode_model, DECODE, load, **options) == pytest.approx(expected_s, rel=1e-9)


def test_itl_of_an_aggregated_engine_carries_its_typical_prefill(agg_model):
    load = EngineLoad(
        scheduled_decode_requests=10,
        scheduled_decode_kv_tokens=10_000,
        queued_decode_requests=1,
        queued_decode_kv_tokens=1000,
    )
    assert itl_s(agg_model, AGG, load) == pytest.approx(0.0241917, rel=1e-9)
    crowded = EngineLoad(**{**_fields(load), "queued_prefill_requests": 2, "queued_prefill_tokens": 3000})
    found = itl_s(agg_model, AGG, crowded.prefilled().scaled(decode=2.0))
    assert found == pytest.approx(0.0258917, rel=1e-9)


def test_a_model_that_saw_nothing_estimates_nothing(limits):
    model = EngineModel()
    assert ttft_s(model, PREFILL, QUEUE, limits) is None
    assert ttft_s(model, AGG, IDLE, limits) is None
    assert itl_s(model, DECODE, BUSY) is None


def test_an_engine_that_admits_no_tokens_has_no_ttft(prefill_model):
    assert ttft_s(prefill_model, PREFILL, QUEUE, EngineLimits(max_num_batched_tokens=0)) is None


def test_a_load_that_is_let_in_or_computed_keeps_its_requests_and_tokens():
    both = EngineLoad(**{**_fields(BUSIER), "queued_prefill_requests": 2, "queued_prefill_tokens": 3000})
    done = both.prefilled().admitted()
    assert done == EngineLoad(scheduled_decode_requests=14, scheduled_decode_kv_tokens=16_000)


def _fields(load: EngineLoad) -> dict[str, float]:
    return {name: getattr(load, name) for name in EngineLoad.__dataclass_fields__}
