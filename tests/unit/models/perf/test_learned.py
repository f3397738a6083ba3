"""What iterations teach, in numbers: how long idling counts, when prices are looked at anew, how loads are laid."""

import pytest

from headrace.models.perf.engine import EngineModel
from headrace.models.perf.learned import FEATURES, Kind, grids
from headrace.models.perf.rows import DECODE_KV, DECODE_REQUESTS, PREFILL_TOKENS


def prompts(*tokens: int, model: EngineModel | None = None) -> EngineModel:
    found = model or EngineModel()
    n = len(tokens)
    found.learn([1] * n, list(tokens), [0] * n, [0] * n, [0.010 + 20e-6 * t for t in tokens])
    return found


# -- how loads are laid ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        (Kind.PREFILL, {PREFILL_TOKENS: (16.0, 32_768.0, 16)}),
        (Kind.DECODE, {DECODE_REQUESTS: (1.0, 1024.0, 8), DECODE_KV: (256.0, 8_388_608.0, 8)}),
        (Kind.MIXED, {PREFILL_TOKENS: (16.0, 32_768.0, 8), DECODE_KV: (256.0, 8_388_608.0, 8)}),
    ],
)
def test_cells_reach_from_the_least_load_to_the_most_and_two_features_share_them(kind, bounds):
    """A prompt of 16 to 32k tokens, a batch of 1 to 1024, 256 tokens of context to 8M."""
    axes = grids(16)[kind].axes
    assert FEATURES[kind] == tuple(bounds)
    assert [(2**low, 2**high, steps) for low, high, steps in axes] == list(bounds.values())


def test_an_engine_model_has_sixteen_cells_where_nothing_is_said():
    assert EngineModel().to_state()["buckets"] == 16


# -- idling ------------------------------------------------------------------------------------------------------------


def test_64_idle_records_halve_the_mean_prompt():
    model = prompts(1000)
    model.idle(64)
    assert model.mean_isl == pytest.approx(500.0)
    model.idle()
    assert model.mean_isl == pytest.approx(1000.0 * 0.5 ** (65 / 64))


@pytest.mark.parametrize("at_once", [1, 64])
def test_idle_records_count_whether_they_come_one_by_one_or_together(at_once):
    model = prompts(1000)
    for _ in range(64 // at_once):
        model.learn(*([0.0] * at_once for _ in range(5)))
    assert model.mean_isl == pytest.approx(500.0)


def test_after_fifty_half_lives_nothing_fades_any_more():
    model = prompts(1000)
    model.idle(64 * 49)
    assert model.mean_isl == pytest.approx(1000.0 * 0.5**49, abs=0.0)
    model.idle(64 * 100)
    assert model.mean_isl == pytest.approx(1000.0 * 0.5**50, abs=0.0)


def test_64_idle_records_halve_what_a_prompt_weighs_beside_the_next():
    model = prompts(1000)
    model.idle(64)
    assert prompts(400, model=model).mean_isl == pytest.approx((0.5 * 1000 + 400) / 1.5)


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_rows_wait_until_there_are_512_of_them():
    model = prompts(*range(100, 611))
    assert len(model.to_state()["waiting"][0]) == 511
    assert len(prompts(900, model=model).to_state()["waiting"][0]) == 0


def test_prices_are_looked_at_anew_after_128_rows_at_last():
    model = prompts(*range(100, 4196))
    assert model.samples(Kind.PREFILL) == 4096
    prompts(*range(100, 227), model=model)
    assert model.samples(Kind.PREFILL) == 4096
    prompts(900, model=model)
    assert model.samples(Kind.PREFILL) == 4096 + 128


# -- the least of everything -------------------------------------------------------------------------------------------


def test_a_new_model_has_seen_nothing():
    state = EngineModel().to_state()
    assert {name: state[name] for name in ("version", "revision", "idle", "idle_at_prompt", "min_observations")} == {
        "version": 1,
        "revision": 0,
        "idle": 0,
        "idle_at_prompt": 0.0,
        "min_observations": 5,
    }


def test_one_row_and_two_cells_may_be_enough():
    model = EngineModel(min_observations=1, buckets=2)
    model.learn([0], [0], [3], [3000], [0.02])
    assert model.ready(Kind.DECODE)


def test_a_prompt_of_one_token_is_a_prompt_and_one_request_a_batch():
    model = prompts(1)
    assert (model.mean_isl, model.samples(Kind.PREFILL)) == (1.0, 1)
    model.learn([0], [0], [1], [700], [0.02])
    assert (model.mean_decode_length, model.samples(Kind.DECODE)) == (700.0, 1)


def test_what_is_not_asked_for_is_not_there():
    model = EngineModel()
    loads = [(1, 9000), (2, 500), (4, 4000), (8, 100), (16, 20_000), (32, 3000)]
    n, kv = zip(*loads, strict=True)
    model.learn([0] * 6, [0] * 6, n, kv, [0.005 + 1e-4 * a + 1e-6 * b for a, b in loads])
    line = model.line(Kind.DECODE)
    assert line is not None
    assert model.wall_time_s(decode_kv_tokens=1000.0) == line.at(0.0, 0.0, 1000.0)
    assert model.wall_time_s(decode_requests=10.0) == line.at(0.0, 10.0, 0.0)


# -- beforehand --------------------------------------------------------------------------------------------------------


def test_after_64_live_rows_one_known_beforehand_counts_a_quarter():
    model = prompts(*[40, 900] * 32)
    model.know_beforehand([1] * 3, [100, 500, 2000], [0] * 3, [0] * 3, [0.012, 0.020, 0.050])
    assert model.live_share == pytest.approx(64.0 / (64.0 + 3 / 4), rel=1e-12)


def test_knowledge_beforehand_is_news_of_as_many_rows_as_it_has_and_of_one_where_it_has_none():
    model = EngineModel()
    model.know_beforehand([1] * 3, [100, 500, 2000], [0] * 3, [0] * 3, [0.012, 0.020, 0.050])
    assert model.revision == 3
    model.know_beforehand([], [], [], [], [])
    assert model.revision == 4
