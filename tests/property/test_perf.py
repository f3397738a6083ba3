"""Whatever engines say, the model of their speed stays sane."""

import json
import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits, EngineLoad, itl_s, ttft_s
from headrace.schemas.base import AGG, DECODE, PREFILL

some = st.integers(1, 300)
few = st.sampled_from([1, 2, 64])  # so that loads repeat
tokens = st.integers(1, 9000) | st.sampled_from([1, 1024, 8192, 10**6])
time = st.floats(1e-4, 1.0) | st.sampled_from([0.01, 0.02])
zero = st.just(0)
garbage = st.tuples(*[st.integers(0, 3) | st.integers(0, 2**40)] * 4, st.floats())
prefill_row = st.tuples(some, tokens, zero, zero, time)
decode_row = st.tuples(zero, zero, some | few, tokens, time)
mixed_row = st.tuples(some, tokens, some | few, tokens, time)
idle_row = st.tuples(zero, zero, zero, zero, st.just(0.0))
spells = st.one_of(*[st.lists(kind, min_size=5, max_size=20) for kind in (prefill_row, decode_row, mixed_row)])
rest = st.lists(st.one_of(prefill_row, decode_row, mixed_row, idle_row, garbage), max_size=10)
any_rows = st.lists(spells | rest, max_size=4).map(lambda parts: list(chain.from_iterable(parts)))
prices = st.tuples(st.floats(1e-4, 0.05), st.floats(1e-7, 1e-4), st.floats(1e-7, 1e-3), st.floats(1e-9, 1e-6))
lengths = st.floats(1, 20_000)
slas = st.floats(1e-4, 10.0)
limits = st.builds(
    EngineLimits,
    max_num_batched_tokens=st.integers(1, 20_000),
    max_num_seqs=st.integers(1, 1000),
    max_kv_tokens=st.integers(1, 10**7),
)
loads = st.builds(
    EngineLoad,
    queued_prefill_requests=st.floats(0, 500),
    queued_prefill_tokens=st.floats(0, 1e6),
    scheduled_decode_requests=st.floats(0, 500),
    scheduled_decode_kv_tokens=st.floats(0, 2e6),
    queued_decode_requests=st.floats(0, 100),
    queued_decode_kv_tokens=st.floats(0, 1e6),
)
roles = st.sampled_from([PREFILL, DECODE, AGG])


def learned(rows: list[tuple[float, ...]], cuts: int = 1) -> EngineModel:
    """A model that was taught `rows` in `cuts` calls."""
    model = EngineModel()
    step = max(1, math.ceil(len(rows) / cuts))
    for start in range(0, len(rows), step):
        model.learn(*zip(*rows[start : start + step], strict=True))
    return model


def engine_of(cost: tuple[float, float, float, float], seed: int = 0, noise: float = 0.0) -> EngineModel:
    """A model of an engine with these prices (fixed, per prefill token, per request, per token of context)."""
    fixed, per_prefill, per_request, per_kv = cost
    rng = np.random.default_rng(seed)
    p = np.where(np.arange(240) % 3 > 0, rng.integers(16, 8192, 240), 0)
    n = np.where(np.arange(240) % 3 < 2, rng.integers(1, 256, 240), 0)
    kv = n * rng.integers(100, 4000, 240)
    wall = (fixed + per_prefill * p + per_request * n + per_kv * kv) * np.exp(noise * rng.standard_normal(240))
    model = EngineModel()
    model.learn(p > 0, p, n, kv, wall)
    return model


def everything_asked(model: EngineModel, load: EngineLoad, limit: EngineLimits) -> list[float]:
    """All numbers that a planner could get from a model."""
    out: list[float | None] = [model.mean_isl, model.mean_decode_length, model.mean_prefill_tokens]
    for kind in Kind:
        out += (model.coefficients(kind) or {}).values()
    for role in (PREFILL, DECODE, AGG):
        out += [ttft_s(model, role, load, limit), itl_s(model, role, load)]
        found = capacity(model, role, limit, RequestShape(500, 100), LatencyTargets(0.5, 0.05))
        if found is not None:
            out += [found.requests_per_s, found.batch, found.ttft_s, found.itl_s]
    return [value for value in out if value is not None]


@given(any_rows, loads, limits)
def test_no_number_is_ever_negative_or_not_finite(rows, load, limit):
    for value in everything_asked(learned(rows), load, limit):
        assert math.isfinite(value)
        assert value >= 0


@given(any_rows, st.integers(2, 60), loads, limits)
def test_cutting_the_rows_into_calls_changes_nothing(rows, cuts, load, limit):
    whole, parts = learned(rows), learned(rows, cuts)
    assert everything_asked(whole, load, limit) == everything_asked(parts, load, limit)


@given(any_rows, any_rows)
def test_a_restored_model_goes_on_exactly_as_the_one_it_was_taken_from(before, after):
    model = learned(before)
    copy = EngineModel.from_state(json.loads(json.dumps(model.to_state())))
    for m in (model, copy):
        if after:
            m.learn(*zip(*after, strict=True))
    assert copy.to_state() == model.to_state()
    assert [copy.coefficients(k) for k in Kind] == [model.coefficients(k) for k in Kind]


@given(any_rows, st.integers(1, 50))
def test_heartbeats_change_no_price(rows, beats):
    model, quiet = learned(rows), learned(rows)
    model.learn(*([0] * beats for _ in range(5)))
    assert [model.coefficients(k) for k in Kind] == [quiet.coefficients(k) for k in Kind]
    assert model.revision == quiet.revision


@given(prices)
def test_exact_prices_are_found(cost):
    model = engine_of(cost)
    for load in ((1000, 0, 0), (0, 20, 30_000), (4000, 0, 0), (0, 200, 300_000)):
        p, n, kv = load
        true = cost[0] + cost[1] * p + cost[2] * n + cost[3] * kv
        found = model.wall_time_s(prefill_tokens=p, decode_requests=n, decode_kv_tokens=kv)
        assert found == pytest.approx(true, rel=1e-5)


@given(prices, st.integers(0, 1000))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_noisy_prices_are_found_within_the_noise(cost, seed):
    model = engine_of(cost, seed, noise=0.05)
    for p, n, kv in ((2000, 0, 0), (0, 100, 200_000)):
        true = cost[0] + cost[1] * p + cost[2] * n + cost[3] * kv
        found = model.wall_time_s(prefill_tokens=p, decode_requests=n, decode_kv_tokens=kv)
        assert found == pytest.approx(true, rel=0.15)


@given(prices, st.floats(1e-3, 1e3))
def test_a_slower_clock_scales_every_time(cost, factor):
    """Wherever the microsecond floor is not reached."""
    slow = tuple(c * factor for c in cost)
    assume(min(slow[0], cost[0]) > 1e-4)
    load = {"prefill_tokens": 3000.0}
    assert engine_of(slow).wall_time_s(**load) == pytest.approx(factor * engine_of(cost).wall_time_s(**load), rel=1e-5)


@given(st.one_of(any_rows.map(learned), prices.map(engine_of)), roles, loads, loads, limits)
def test_more_load_never_takes_less_time(model, role, load, more, limit):
    heavier = EngineLoad(**{f: getattr(load, f) + getattr(more, f) for f in EngineLoad.__dataclass_fields__})
    light, heavy = itl_s(model, role, load), itl_s(model, role, heavier)
    assert light is None or heavy >= light * (1 - 1e-9)
    if (load.scheduled_decode_requests > 0) == (heavier.scheduled_decode_requests > 0):  # else another kind answers
        light, heavy = ttft_s(model, role, load, limit), ttft_s(model, role, heavier, limit)
        assert light is None or heavy >= light * (1 - 1e-9)


@given(prices, roles, limits, lengths, lengths, slas, slas, st.floats(1, 5))
def test_a_looser_sla_never_lowers_capacity(cost, role, limit, isl, osl, ttft, itl, looser):
    model = engine_of(cost)
    tight = capacity(model, role, limit, RequestShape(isl, osl), LatencyTargets(ttft, itl))
    loose = capacity(model, role, limit, RequestShape(isl, osl), LatencyTargets(ttft * looser, itl * looser))
    assert (tight is None) == (loose is None)
    if tight is not None and tight.meets_sla:
        assert loose.meets_sla
        assert loose.requests_per_s >= tight.requests_per_s


@given(prices, roles, limits, lengths, lengths, slas, slas, st.one_of(st.none(), st.floats(0, 1)), st.floats(1, 4))
def test_a_capacity_that_says_it_meets_the_sla_does(cost, role, limit, isl, osl, ttft, itl, hit, accept):
    model = engine_of(cost)
    shape, targets = RequestShape(isl, osl, hit, accept), LatencyTargets(ttft, itl)
    found = capacity(model, role, limit, shape, targets)
    if found is None:
        return
    misses = [x / sla for x, sla in ((found.ttft_s, ttft), (found.itl_s, itl)) if x is not None]
    assert found.meets_sla == (max(misses) <= 1)
    assert 1 <= found.batch <= limit.max_num_seqs
    assert found.requests_per_s > 0
    if not found.meets_sla:  # then nothing does: the same engine without SLAs, asked for any batch, misses one of them
        one = EngineLimits(limit.max_num_batched_tokens, 1, limit.max_kv_tokens)
        alone = capacity(model, role, one, shape, targets)
        assert alone is None or not alone.meets_sla


@given(prices, limits, lengths, lengths, st.floats(1, 10))
def test_longer_prompts_never_raise_the_capacity_of_a_decode_engine(cost, limit, isl, osl, factor):
    model = engine_of(cost)
    short = capacity(model, DECODE, limit, RequestShape(isl, osl), LatencyTargets(None, None))
    long = capacity(model, DECODE, limit, RequestShape(isl * factor, osl), LatencyTargets(None, None))
    if long is not None:
        assert long.requests_per_s <= short.requests_per_s * (1 + 1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
@settings(max_examples=20)
def test_a_few_stalls_do_not_move_an_engine_that_is_known(seed, stalls):
    cost = (0.005, 2e-5, 5e-5, 1e-7)
    model = engine_of(cost, seed % 1000, noise=0.03)
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 256, stalls)
    model.learn([0] * stalls, [0] * stalls, n, n * 1000, [30.0] * stalls)
    true = cost[0] + cost[2] * 100 + cost[3] * 200_000
    assert model.wall_time_s(decode_requests=100, decode_kv_tokens=200_000) == pytest.approx(true, rel=0.5)
