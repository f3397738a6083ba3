"""What an engine model learns, and from what it does not let itself be fooled."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest

from headrace.models.perf.engine import EngineModel, Kind
from headrace.schemas.errors import StateError


def noisy_decodes(rows: int, *, seed: int = 1, noise: float = 0.03) -> list[np.ndarray]:
    """Columns of a decode engine: 5 ms + 0.05 ms a request + 0.0001 ms a token, with relative noise."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 200, rows)
    kv = n * rng.integers(500, 3000, rows)
    wall = (5 + 0.05 * n + 0.0001 * kv) / 1000 * (1 + noise * rng.standard_normal(rows))
    return [np.zeros(rows), np.zeros(rows), n, kv, wall]


def learn_prefills(model: EngineModel, tokens: list[float], wall_time_s: list[float]) -> None:
    zeros = [0] * len(tokens)
    model.learn([1] * len(tokens), tokens, zeros, zeros, wall_time_s)


def test_exact_prefill_data_gives_back_its_prices(prefill_model):
    c = prefill_model.coefficients(Kind.PREFILL)
    assert c["intercept_s"] == pytest.approx(0.010, rel=1e-9)
    assert c["per_prefill_token_s"] == pytest.approx(2e-5, rel=1e-9)
    assert (c["per_decode_request_s"], c["per_kv_token_s"], c["samples"]) == (0.0, 0.0, 5)


def test_exact_decode_data_gives_back_its_prices(decode_model):
    c = decode_model.coefficients(Kind.DECODE)
    assert c["intercept_s"] == pytest.approx(0.005, rel=1e-9)
    assert c["per_decode_request_s"] == pytest.approx(5e-5, rel=1e-9)
    assert c["per_kv_token_s"] == pytest.approx(1e-7, rel=1e-9)


def test_exact_mixed_data_gives_back_its_prices(agg_model):
    c = agg_model.coefficients(Kind.MIXED)
    assert c["intercept_s"] == pytest.approx(0.005, rel=1e-9)
    assert c["per_prefill_token_s"] == pytest.approx(2e-5, rel=1e-9)
    assert c["per_kv_token_s"] == pytest.approx(1e-7, rel=1e-9)


def test_noisy_data_gives_back_its_prices_within_its_noise():
    model = EngineModel()
    model.learn(*noisy_decodes(5000))
    c = model.coefficients(Kind.DECODE)
    assert c["intercept_s"] == pytest.approx(0.005, rel=0.05)
    assert c["per_decode_request_s"] == pytest.approx(5e-5, rel=0.05)
    assert c["per_kv_token_s"] == pytest.approx(1e-7, rel=0.05)


def test_a_negative_price_is_dropped_and_the_rest_fitted_anew():
    # Golden D of reference-semantics 3.9: 15 - 0.05 n + 0.0004 kv ms; least squares on kv alone gives this line.
    n, kv = np.array([1, 4, 8, 16, 32, 64]), np.array([500, 3000, 9000, 15000, 40000, 60000])
    model = EngineModel()
    model.learn(np.zeros(6), np.zeros(6), n, kv, (15 - 0.05 * n + 0.0004 * kv) / 1000)
    slope, intercept = np.polyfit(kv, (15 - 0.05 * n + 0.0004 * kv) / 1000, 1)
    c = model.coefficients(Kind.DECODE)
    assert c["per_decode_request_s"] == 0.0
    assert c["per_kv_token_s"] == pytest.approx(slope, rel=1e-5)
    assert c["intercept_s"] == pytest.approx(intercept, rel=1e-5)


def test_a_negative_fixed_cost_is_dropped_and_the_rest_fitted_anew():  # reference weak spot 19
    model = EngineModel()
    tokens = [500.0, 800.0, 1200.0, 1500.0, 1900.0]
    learn_prefills(model, tokens, [0.0005, 0.006, 0.013, 0.017, 0.023])
    c = model.coefficients(Kind.PREFILL)
    assert c["intercept_s"] == 0.0
    assert model.wall_time_s(prefill_tokens=100) == pytest.approx(100 * c["per_prefill_token_s"])
    assert model.wall_time_s(prefill_tokens=100) > 5e-4


def test_more_work_in_less_time_is_no_speed():  # cases.md row 33
    model = EngineModel()
    learn_prefills(model, [100, 200, 300, 400, 500, 600], [0.030, 0.028, 0.026, 0.024, 0.022, 0.020])
    assert not model.ready(Kind.PREFILL)
    assert model.wall_time_s(prefill_tokens=100) is None


def test_a_flat_engine_is_flat_not_unknown():
    model = EngineModel()
    learn_prefills(model, [100, 200, 300, 400, 500, 600], [0.03] * 6)
    assert model.wall_time_s(prefill_tokens=5000) == pytest.approx(0.03)


def test_where_load_never_varied_twice_the_load_takes_twice_as_long():
    model = EngineModel()
    learn_prefills(model, [1024] * 9, [0.030] * 9)
    assert model.wall_time_s(prefill_tokens=1024) == pytest.approx(0.030, rel=1e-6)
    assert model.wall_time_s(prefill_tokens=2048) == pytest.approx(0.060, rel=0.02)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_kind_is_not_ready_below_its_minimum(rows):
    model = EngineModel(min_observations=5)
    learn_prefills(model, list(range(100, 100 + rows)), [0.01] * rows)
    assert not model.ready(Kind.PREFILL)
    assert model.coefficients(Kind.PREFILL) is None
    assert model.samples(Kind.PREFILL) == rows


def test_kinds_do_not_answer_for_one_another(prefill_model):
    assert prefill_model.ready(Kind.PREFILL)
    assert not prefill_model.ready(Kind.DECODE)
    assert prefill_model.wall_time_s(decode_requests=1, decode_kv_tokens=100) is None
    assert prefill_model.wall_time_s(prefill_tokens=10, decode_requests=1, decode_kv_tokens=100) is None


def test_no_load_takes_no_time():
    assert EngineModel().wall_time_s() == 0.0


def test_no_iteration_is_faster_than_a_microsecond():
    model = EngineModel()
    learn_prefills(model, [1e6, 2e6, 3e6, 4e6, 5e6], [1e-6, 2e-6, 3e-6, 4e-6, 5e-6])
    assert model.wall_time_s(prefill_tokens=1) == 1e-6


@pytest.mark.parametrize(
    "row",
    [
        pytest.param((0, 0, 0, 0, 0.0), id="heartbeat"),
        pytest.param((0, 0, 0, 0, 0.5), id="time without work"),
        pytest.param((1, 500, 0, 0, 0.0), id="work without time"),
        pytest.param((1, 500, 0, 0, math.nan), id="nan time"),
        pytest.param((1, 500, 0, 0, math.inf), id="infinite time"),
        pytest.param((1, 500, 0, 0, -0.1), id="negative time"),
        pytest.param((1, 500, 0, 0, 3600.0), id="an hour"),
        pytest.param((1, 500, 0, 0, 5e-324), id="no time to speak of"),
        pytest.param((1, math.nan, 0, 0, 0.1), id="nan tokens"),
        pytest.param((1, -5, 0, 0, 0.1), id="negative tokens"),
        pytest.param((1, 1e15, 0, 0, 0.1), id="absurd tokens"),
        pytest.param((0, 500, 0, 0, 0.1), id="prefill tokens without requests"),
        pytest.param((0, 0, 0, 500, 0.1), id="context without requests"),
    ],
)
def test_a_row_that_cannot_be_believed_changes_nothing(row, decode_model):
    before = decode_model.coefficients(Kind.DECODE), decode_model.revision
    decode_model.learn(*([value] for value in row))
    assert (decode_model.coefficients(Kind.DECODE), decode_model.revision) == before
    assert decode_model.mean_isl is None


def test_a_bad_row_spoils_only_itself():  # reference weak spot 23
    model = EngineModel()
    tokens = [100, 500, math.nan, 1000, 1500, 2000]
    learn_prefills(model, tokens, [(10 + 0.02 * t) / 1000 for t in tokens])
    assert model.samples(Kind.PREFILL) == 5
    assert model.wall_time_s(prefill_tokens=700) == pytest.approx(0.024)


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="equal length"):
        EngineModel().learn([1, 1], [100], [0], [0], [0.1])


def test_no_rows_at_all_change_nothing():
    model = EngineModel()
    model.learn([], [], [], [], [])
    assert model.revision == 0


@pytest.mark.parametrize("bad", [{"min_observations": 0}, {"buckets": 1}])
def test_impossible_options_are_refused(bad):
    with pytest.raises(ValueError, match="min_observations"):
        EngineModel(**bad)


def test_the_revision_rises_with_every_row_learned(prefill_model):
    before = prefill_model.revision
    learn_prefills(prefill_model, [700], [0.024])
    assert prefill_model.revision == before + 1


# -- means ------------------------------------------------------------------------------------------------------------


def test_mean_lengths_are_those_of_the_reference(prefill_model, decode_model, agg_model):  # reference-semantics 3.9
    assert prefill_model.mean_isl == pytest.approx(1020)
    assert decode_model.mean_decode_length == pytest.approx(916.6666667)
    assert agg_model.mean_isl == pytest.approx(608.3333333)
    assert agg_model.mean_prefill_tokens == pytest.approx(900)


def test_means_are_unknown_before_anything_was_seen():
    model = EngineModel()
    assert (model.mean_isl, model.mean_decode_length, model.mean_prefill_tokens) == (None, None, None)


def test_decode_only_iterations_do_not_dilute_the_mean_prompt(prefill_model):  # reference weak spot 20
    prefill_model.learn([0] * 100, [0] * 100, [4] * 100, [4000] * 100, [0.01] * 100)
    assert prefill_model.mean_isl == pytest.approx(1020)


def test_a_few_heartbeats_hardly_change_the_mean_prompt():  # reference weak spot 20: there 1000 becomes 200
    model = EngineModel()
    learn_prefills(model, [1000], [0.03])
    model.learn([0] * 4, [0] * 4, [0] * 4, [0] * 4, [0.0] * 4)
    assert 950 < model.mean_isl < 1000


def test_an_old_long_prompt_fades_with_every_idle_record():  # case T13, dynamo#9756
    model = EngineModel()
    learn_prefills(model, [12_000], [0.3])
    seen = [model.mean_isl]
    for _ in range(200):
        model.learn([0], [0], [0], [0], [0.0])
        seen.append(model.mean_isl)
    assert all(later < earlier for earlier, later in pairwise(seen))
    assert seen[64] == pytest.approx(6000)


def test_idle_counts_like_the_records_it_stands_for():
    told, shown = EngineModel(), EngineModel()
    for model in (told, shown):
        learn_prefills(model, [12_000], [0.3])
    told.idle(7)
    shown.learn([0] * 7, [0] * 7, [0] * 7, [0] * 7, [0.0] * 7)
    assert told.mean_isl == shown.mean_isl


def test_a_new_prompt_ends_the_fading():
    model = EngineModel()
    learn_prefills(model, [1000], [0.03])
    model.idle(64)
    learn_prefills(model, [2000], [0.05])
    assert model.mean_isl == pytest.approx((0.5 * 1000 + 2000) / 1.5)


def test_long_prompts_from_before_a_long_pause_do_not_come_back_with_the_next_short_one():  # dynamo#9756
    model = EngineModel()
    learn_prefills(model, [12_000] * 300, [0.3] * 300)
    model.idle(1000)
    learn_prefills(model, [200], [0.01])
    assert model.mean_isl == pytest.approx(200, rel=0.4)


def test_a_quiet_engine_is_not_taken_for_one_with_short_prompts():  # reference weak spot 20
    model = EngineModel()
    for _ in range(20):
        learn_prefills(model, [1000], [0.03])
        model.idle(4)
    assert model.mean_isl == pytest.approx(1000 * 0.5 ** (4 / 64))


def test_endless_idling_leaves_a_number():
    model = EngineModel()
    learn_prefills(model, [1000], [0.03])
    model.idle(10**9)
    assert 0 < model.mean_isl < 1e-9


def test_prefill_alone_is_not_what_a_decoding_request_sees(agg_model):
    learn_prefills(agg_model, [2048] * 50, [0.05] * 50)
    assert agg_model.mean_prefill_tokens == pytest.approx(900)


# -- outliers and change ----------------------------------------------------------------------------------------------


def worst_error(model: EngineModel, factor: float = 1.0) -> float:
    """Largest relative error over loads from 1 to 200 requests of an engine that is `factor` times as slow."""
    loads = [(n, n * length) for n in (1, 10, 50, 200) for length in (500, 1500, 3000)]
    true = [factor * (5 + 0.05 * n + 0.0001 * kv) / 1000 for n, kv in loads]
    found = [model.wall_time_s(decode_requests=n, decode_kv_tokens=kv) for n, kv in loads]
    return max(abs(f / t - 1) for f, t in zip(found, true, strict=True))


def test_one_percent_of_stalls_hardly_moves_the_fit():
    columns = noisy_decodes(5000)
    columns[4][::100] *= 100
    model = EngineModel()
    model.learn(*columns)
    assert worst_error(model) < 0.05


def test_one_stall_among_the_first_iterations_is_seen_through():
    columns = noisy_decodes(60)
    columns[4][3] *= 100
    model = EngineModel()
    model.learn(*columns)
    assert worst_error(model) < 0.25


@pytest.mark.parametrize("where", range(6))
def test_one_stall_among_six_loads_is_seen_through(where):
    tokens = np.array([100, 500, 1000, 1500, 2000, 4000])
    wall = 0.010 + 2e-5 * tokens
    wall[where] *= 50
    model = EngineModel()
    learn_prefills(model, list(tokens), list(wall))
    assert model.wall_time_s(prefill_tokens=1200) == pytest.approx(0.034, rel=0.15)


def test_a_load_never_seen_before_is_not_taken_for_an_outlier():
    model = EngineModel()
    model.learn(*noisy_decodes(2000))
    zeros = np.zeros(100)
    n, kv = np.full(100, 400.0), np.full(100, 2_000_000.0)
    model.learn(zeros, zeros, n, kv, (5 + 0.05 * n + 0.0001 * kv) / 1000)
    assert model.wall_time_s(decode_requests=400, decode_kv_tokens=2_000_000) == pytest.approx(0.225, rel=0.02)


def test_an_engine_that_becomes_twice_as_slow_is_believed_in_the_end():
    model = EngineModel()
    model.learn(*noisy_decodes(5000))
    for seed in range(40):
        columns = noisy_decodes(1000, seed=seed)
        columns[4] *= 2
        model.learn(*columns)
    assert worst_error(model, factor=2.0) < 0.1


def test_a_rare_load_is_remembered_while_a_frequent_one_goes_on():
    model = EngineModel()
    model.learn(*noisy_decodes(2000))
    n = np.full(50_000, 20.0)
    model.learn(np.zeros(50_000), np.zeros(50_000), n, n * 1000, (5 + 0.05 * n + 0.1 * n) / 1000)
    assert worst_error(model) < 0.1


# -- determinism and state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 7, 512, 513, 1000])
def test_the_result_does_not_depend_on_how_calls_cut_the_rows(cut):
    columns = noisy_decodes(1500)
    whole, parts = EngineModel(), EngineModel()
    whole.learn(*columns)
    for start in range(0, 1500, cut):
        parts.learn(*(c[start : start + cut] for c in columns))
    assert parts.to_state() == whole.to_state()


def test_the_result_does_not_depend_on_when_it_is_asked():
    columns = noisy_decodes(1500)
    asked, silent = EngineModel(), EngineModel()
    for start in range(0, 1500, 100):
        part = [c[start : start + 100] for c in columns]
        asked.learn(*part)
        asked.wall_time_s(decode_requests=3, decode_kv_tokens=900)
        silent.learn(*part)
    assert asked.coefficients(Kind.DECODE) == silent.coefficients(Kind.DECODE)
    assert asked.to_state() == silent.to_state()


def test_lists_and_arrays_teach_the_same():
    columns = noisy_decodes(700)
    arrays, lists = EngineModel(), EngineModel()
    arrays.learn(*columns)
    lists.learn(*(c.tolist() for c in columns))
    assert arrays.to_state() == lists.to_state()


def test_a_model_goes_on_from_its_state_as_if_nothing_had_happened():
    model = EngineModel(min_observations=7, buckets=8)
    model.learn(*noisy_decodes(1300))
    model.idle(3)
    copy = EngineModel.from_state(json.loads(json.dumps(model.to_state())))
    assert copy.coefficients(Kind.DECODE) == model.coefficients(Kind.DECODE)
    assert (copy.revision, copy.mean_decode_length) == (model.revision, model.mean_decode_length)
    for m in (model, copy):
        m.learn(*noisy_decodes(1300, seed=2))
    assert copy.to_state() == model.to_state()


def test_the_state_stays_small_however_much_was_learned():
    rng = np.random.default_rng(3)
    model = EngineModel()
    for _ in range(20):
        n, tokens = rng.integers(0, 2000, 5000), rng.integers(0, 2, 5000) * rng.integers(1, 10**6, 5000)
        kv = n * rng.integers(1, 50_000, 5000)
        model.learn(tokens > 0, tokens, n, kv, rng.uniform(0.001, 1.0, 5000))
    assert len(json.dumps(model.to_state())) < 100_000


def test_a_state_of_another_version_is_refused():
    state = EngineModel().to_state() | {"version": 99}
    with pytest.raises(StateError, match="version 99"):
        EngineModel.from_state(state)


@pytest.mark.parametrize("damage", [{"cells": {}}, {"waiting": [[1.0]]}, {"means": {"isl": [1]}}, {"buckets": 1}])
def test_a_damaged_state_is_refused(damage):
    with pytest.raises(StateError, match="engine model state"):
        EngineModel.from_state(EngineModel().to_state() | damage)
