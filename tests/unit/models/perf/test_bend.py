"""Prefill that is flat for small prompts and steep for large ones."""

import math

import numpy as np
import pytest

from headrace.models.perf.bend import fit_bent
from headrace.models.perf.cells import Cells, Grid, edges
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.fit import fit, table_of
from headrace.models.perf.line import Line


def learned(tokens: np.ndarray, wall_time_s: np.ndarray) -> EngineModel:
    model = EngineModel()
    zeros = np.zeros(len(tokens))
    model.learn(np.ones(len(tokens)), tokens, zeros, zeros, wall_time_s)
    return model


def worst_error(model: EngineModel, tokens: np.ndarray, wall_time_s: np.ndarray) -> float:
    found = [model.wall_time_s(prefill_tokens=t) for t in tokens]
    return float(np.max(np.abs(found / wall_time_s - 1)))


def test_a_knee_is_followed():
    tokens = np.array([50, 100, 200, 400, 800, 1200, 2000, 4000, 6000, 8000])
    wall = 0.020 + np.maximum(0, tokens - 1000) * 3e-5
    assert worst_error(learned(tokens, wall), tokens, wall) < 0.12  # a straight line misses by 0.38


def test_attention_that_grows_with_the_square_is_followed():
    tokens = np.array([100, 250, 500, 1000, 2000, 3000, 4500, 6000, 7000, 8192])
    wall = 0.010 + 1.5e-5 * tokens + 8e-10 * tokens**2
    assert worst_error(learned(tokens, wall), tokens, wall) < 0.05


def test_a_bend_on_an_edge_of_the_grid_is_found_exactly():
    bend = 2.0 ** (4 + 11 * 8 / 16)
    tokens = np.geomspace(32, 8000, 60)
    wall = 0.010 + 1e-6 * tokens + 2e-5 * np.maximum(0, tokens - bend)
    c = learned(tokens, wall).coefficients(Kind.PREFILL)
    assert c["bend_tokens"] == bend
    assert c["intercept_s"] == pytest.approx(0.010, rel=1e-6)
    assert c["per_prefill_token_s"] == pytest.approx(1e-6, rel=1e-6)
    assert c["per_token_beyond_bend_s"] == pytest.approx(2e-5, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_not_taken_for_a_bend(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(32, 8192, 300)
    wall = (0.010 + 2e-5 * tokens) * (1 + 0.05 * rng.standard_normal(300))
    assert "bend_tokens" not in learned(tokens, wall).coefficients(Kind.PREFILL)


def test_a_line_that_flattens_stays_straight():
    """Large prompts at a lower price than small ones would be a promise without end."""
    tokens = np.geomspace(32, 8000, 60)
    wall = 0.001 + 2e-4 * np.sqrt(tokens)
    c = learned(tokens, wall).coefficients(Kind.PREFILL)
    assert "bend_tokens" not in c
    assert c["per_prefill_token_s"] > 0


def test_one_load_and_many_loads_cost_the_same_on_both_sides_of_a_bend():
    line = Line(0.01, 1e-6, 0.0, 0.0, bend_tokens=1000.0, per_token_beyond_bend_s=2e-5)
    tokens = np.array([0.0, 999.0, 1000.0, 1001.0, 5000.0])
    many = line.at_each(tokens, np.zeros(5), np.zeros(5))
    assert many.tolist() == [line.at(t) for t in tokens]
    assert line.at(5000) == pytest.approx(0.01 + 0.005 + 0.08)


# -- at the bound ------------------------------------------------------------------------------------------------------

AXIS = (4.0, 15.0, 16)
EDGE = float(edges(*AXIS)[4])  # about 173 tokens


def bent_at(edge: float, slope: float, loads: list[float], noise: float = 0.0, rows: int = 64) -> Cells:
    """A second up to the edge and `slope` times more for each token beyond; half of the rows above it, half below."""
    cells = Cells.empty(Grid((AXIS,)))
    for load in loads:
        time = 1.0 + slope * max(0.0, load - edge)
        cells = cells.fold(np.array([[load] * rows, [time * (1 + noise), time * (1 - noise)] * (rows // 2)]))
    return cells


@pytest.mark.parametrize(("below", "found"), [([20.0, 60.0], True), ([20.0], False)])
def test_a_bend_needs_two_cells_on_either_side(below, found):
    above = [300.0, 1000.0, 3000.0, 9000.0]
    bent = fit_bent(bent_at(EDGE, 1e-3, [*below, *above]))
    assert bent is not None
    assert (bent.bend == EDGE) is found


def test_a_bend_that_explains_less_than_a_hundredth_is_left_alone():
    loads = [2.0**k for k in range(4, 15)]
    slight, clear = (fit_bent(bent_at(2048.0, slope, loads)) for slope in (1e-6, 4e-5))
    assert slight is not None
    assert clear is not None
    assert slight.bend == math.inf
    assert clear.bend < math.inf


def test_a_bend_is_taken_from_where_it_explains_more_than_three_numbers_would_by_chance():
    """The Bayesian information criterion: 2 n ln(noise without / noise with) above 3 ln n."""
    loads = [20.0, 60.0, 300.0, 1000.0, 3000.0, 9000.0]
    n = 64.0 * len(loads)
    for step in range(2100, 2300):
        cells = bent_at(EDGE, 1e-7 * step, loads, noise=0.05)
        bent, table = fit_bent(cells), table_of(cells, relative=True)
        assert bent is not None
        assert table is not None
        if bent.bend < math.inf:
            break
    straight = fit(table.moments())
    assert straight is not None
    assert 3 * math.log(n) < 2 * n * math.log(straight.noise / bent.fit.noise) < 3.1 * math.log(n)
