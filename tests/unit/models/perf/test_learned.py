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


def test_after_fifty_half_lives_nothing_fades_any_more():
    model = prompts(1000)
    model.idle(64 * 49)
    assert model.mean_isl == pytest.approx(1000.0 * 0.5**49)
    model.idle(64 * 100)
    assert model.mean_isl == pytest.approx(1000.0 * 0.5**50)


def test_64_idle_records_halve_what_a_prompt_weighs_beside_the_next():
    model = prompts(1000)
    model.idle(64)
    assert prompts(400, model=model).mean_isl == pytest.approx((0.5 * 1000 + 400) / 1.5)


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_rows_wait_until_there_are_512_of_them():
    model = prompts(*range(100, 611))
    assert len(model.to_state()["waiting"][0]) == 511
    assert len(prompts(900, model=model).to_state()["waiting"][0]) == 0
