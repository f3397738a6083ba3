"""The reference's engine model. Golden numbers: reference-semantics 3.9."""

import pytest
from reference_stage import BATCHES, iteration, learned, load, make_state

from headrace.models.reference.capacity import Capacity, Demand, batches, find_capacity
from headrace.models.reference.engine import Kind
from headrace.models.reference.perf import Asked, PerfModel
from headrace.models.reference.settings import Engine
from headrace.schemas.base import AGG, DECODE, PREFILL


def model(role: str) -> PerfModel:
    mode = {AGG: "agg"}.get(role, role)
    return make_state(mode).models[role]


@pytest.mark.parametrize(
    ("fpm", "asked", "seconds"),
    [
        (load(), Asked(), 0.0304),
        (load(queue=3000, requests=2), Asked(), 0.1004),
        (load(queue=3000, requests=2), Asked(kv_hit_rate=0.5), 0.0502),
        (load(queue=3000, requests=2), Asked(kv_hit_rate=1.0), 0.01404),
        (load(queue=3000, requests=2), Asked(queue_scale=1.5), 0.1404),
        (load(queue=10000, requests=2), Asked(), 0.2804),
    ],
)
def test_ttft_is_that_of_the_queue_and_the_next_prompt_in_chunks(fpm, asked, seconds) -> None:
    assert model(PREFILL).ttft_s(fpm, asked) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("fpm", "asked", "seconds"),
    [
        (load(), Asked(), 0.0051417),
        (load(n=10, kv=10000), Asked(), 0.0066417),
        (load(n=10, kv=10000, queued_kv=3000), Asked(), 0.0070417),
        (load(n=10, kv=10000, queued_kv=3000), Asked(decode_scale=2.0), 0.0089417),
    ],
)
def test_itl_is_that_of_the_batch_and_one_request_more(fpm, asked, seconds) -> None:
    assert model(DECODE).itl_s(fpm, asked) == pytest.approx(seconds, rel=1e-5)


def test_an_aggregated_engine_that_does_not_decode_has_no_ttft_unless_it_was_seen_to_prefill_alone() -> None:
    agg = model(AGG)
    assert agg.ttft_s(load(queue=3000, requests=2, n=10, kv=10000)) == pytest.approx(0.08418, rel=1e-6)
    assert agg.ttft_s(load(queue=3000, requests=2)) is None


def test_an_aggregated_engine_decodes_beside_its_typical_prefill() -> None:
    assert model(AGG).itl_s(load(n=10, kv=10000)) == pytest.approx((5 + 0.02 * 900 + 0.0001 * 10917) / 1000, rel=1e-6)


@pytest.mark.parametrize(
    ("demand", "rate", "ttft_ms", "eligible"),
    [
        (Demand(1000, ttft_ms=500), 40.0, 50.0, True),
        (Demand(1000, ttft_ms=500, kv_hit_rate=0.5), 80.0, 50.0, True),
        (Demand(1000, ttft_ms=40), 33.3333333, 30.0, True),
        (Demand(1000, ttft_ms=20), 40.0, 50.0, False),
        (Demand(3000, ttft_ms=500), 12.5, 80.0, True),
        (Demand(300, ttft_ms=30), 107.142857, 28.0, True),
        (Demand(10, ttft_ms=500), 4015.748, 50.8, True),
    ],
)
def test_prefill_capacity_is_the_highest_rate_within_the_sla_or_else_the_highest_rate(
    demand, rate, ttft_ms, eligible
) -> None:
    found = find_capacity(model(PREFILL), demand)
    assert found == Capacity(
        pytest.approx(rate, rel=1e-6), pytest.approx(ttft_ms), None, pytest.approx(ttft_ms), eligible
    )


@pytest.mark.parametrize(
    ("demand", "rate", "itl_ms", "eligible"),
    [
        (Demand(1000, 200, itl_ms=50), 23.1958763, 19.4, True),
        (Demand(1000, 200, itl_ms=8), 11.4213198, 7.88, True),
        (Demand(1000, 200, itl_ms=8, accept_length=2.0), 42.8211587, 7.94, True),
        (Demand(1000, 200, itl_ms=5), 23.1958763, 19.4, False),
    ],
)
def test_decode_capacity_is_bounded_by_memory_and_itl(demand, rate, itl_ms, eligible) -> None:
    found = find_capacity(model(DECODE), demand)
    assert found == Capacity(pytest.approx(rate, rel=1e-6), None, pytest.approx(itl_ms), None, eligible)


def test_a_context_that_does_not_fit_has_no_capacity() -> None:
    assert find_capacity(model(DECODE), Demand(200_000, 100, itl_ms=50)) is None


@pytest.mark.parametrize(
    ("demand", "rate", "ttft_ms", "itl_ms", "e2e_ms", "eligible"),
    [
        (Demand(1000, 200, 500, 50), 18.8284519, 43.9, 23.9, 4800, True),
        (Demand(1000, 200, 500, 20), 17.8302361, 39.91, 19.91, 4002, True),
        (Demand(1000, 200, 500, 20, kv_hit_rate=0.5), 23.1958763, 29.4, 19.4, 3890, True),
        (Demand(1000, 200, 500, 20, accept_length=2.0), 27.3556231, 52.9, 16.45, 3326.45, True),
        (Demand(1000, 200, 10, 10), 18.8284519, 43.9, 23.9, 4800, False),
        (Demand(1000, 1, 500, 500), 44.2477876, 70.4, 45.2, 70.4, True),
    ],
)
def test_aggregated_capacity_prefills_for_those_that_end(demand, rate, ttft_ms, itl_ms, e2e_ms, eligible) -> None:
    found = find_capacity(model(AGG), demand)
    assert found == Capacity(
        pytest.approx(rate, rel=1e-6), pytest.approx(ttft_ms), pytest.approx(itl_ms), pytest.approx(e2e_ms), eligible
    )


def test_a_slope_that_noise_makes_negative_is_left_out_and_the_rest_fitted_anew() -> None:
    decode = make_state("decode", taught=False).models[DECODE]
    decode.bootstrap([iteration(n=n, kv=kv, wall_ms=15 - 0.05 * n + 0.0004 * kv) for n, kv in BATCHES])
    assert decode.itl_s(load(n=10, kv=10000)) == pytest.approx(0.0188385, rel=1e-5)


def test_readiness_of_one_kind_says_nothing_of_another() -> None:
    agg = make_state("agg", taught=False).models[AGG]
    agg.bootstrap(learned(DECODE))
    assert agg.ready
    assert find_capacity(agg, Demand(1000, 200, 500, 50)) is None


def test_other_limits_teach_a_new_model_the_latest_iterations() -> None:
    state = make_state("prefill")
    before = state.models[PREFILL].times
    state.set_engines({PREFILL: Engine(max_num_batched_tokens=4096)})
    assert state.models[PREFILL].times is not before
    assert state.models[PREFILL].ttft_s(load(queue=3000, requests=2)) == pytest.approx(0.0904, rel=1e-6)


def test_engines_that_have_said_an_impossible_limit_teach_nothing_yet() -> None:
    state = make_state("prefill", taught=False)
    state.set_engines({PREFILL: Engine(max_num_batched_tokens=0)})
    state.models[PREFILL].bootstrap(learned(PREFILL))
    assert not state.models[PREFILL].ready
    state.set_engines({PREFILL: Engine()})
    assert state.models[PREFILL].ready


def test_no_batch_above_128_is_left_out_at_the_ends() -> None:
    assert batches(128) == list(range(1, 129))
    many = batches(1000)
    assert (len(many), many[0], many[-1]) == (128, 1, 1000)


def test_one_bad_fpm_loses_those_after_it() -> None:
    prefill = make_state("prefill", taught=False).models[PREFILL]
    bad = iteration(p=100, num_p=0, wall_ms=12)
    prefill.bootstrap([iteration(100, 1, wall_ms=12), bad, iteration(200, 1, wall_ms=14)])
    assert len(prefill.times.kept[Kind.PREFILL]) == 1
