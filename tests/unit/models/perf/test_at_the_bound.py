"""Where a rule about engine speed begins and ends: the value at each bound, and the one beside it."""

from dataclasses import astuple

import numpy as np
import pytest

from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits, EngineLoad
from headrace.models.perf.line import Line
from headrace.models.perf.tally import Tally
from headrace.schemas.base import DECODE

# -- which rows are believed -------------------------------------------------------------------------------------------

BELIEVED = [
    (1, 1, 0, 0, 0.01),  # a prompt of one token
    (0, 0, 1, 0, 0.01),  # a request that decodes and holds nothing
    (0, 0, 1, 1, 0.01),
    (1, 1e9, 0, 0, 0.01),
    (1e9, 1, 0, 0, 0.01),
    (0, 0, 1e9, 1, 0.01),
    (0, 0, 1, 1e9, 0.01),
    (1, 1, 0, 0, 1e-6),
    (1, 1, 0, 0, 600.0),
]
REFUSED = [
    (1, 0, 0, 0, 0.01),  # no work, and it took time
    (1, 1e9 + 1, 0, 0, 0.01),
    (1e9 + 1, 1, 0, 0, 0.01),
    (0, 0, 1e9 + 1, 1, 0.01),
    (0, 0, 1, 1e9 + 1, 0.01),
    (1, 1, 0, 0, 0.9e-6),
    (1, 1, 0, 0, 600.5),
    (1, -0.5, 1, 1, 0.01),
    (-0.5, 1, 1, 1, 0.01),
    (1, 1, 1, -0.5, 0.01),
    (1, 1, -0.5, 0, 0.01),
    (0, 1, 1, 1, 0.01),  # prompt tokens of no prompt
    (1, 1, 0, 1, 0.01),  # context of no request
]


def learned(row: tuple[float, ...], times: int) -> EngineModel:
    """Few rows and many are sifted in two ways, by one rule."""
    model = EngineModel()
    model.learn(*([value] * times for value in row))
    return model


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("row", BELIEVED)
def test_a_row_at_the_bound_is_learned_from(row, times):
    assert learned(row, times).revision == times


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("row", REFUSED)
def test_a_row_beyond_the_bound_is_not(row, times):
    assert learned(row, times).revision == 0


# -- means ---------------------------------------------------------------------------------------------------------


def test_a_mean_begins_with_its_first_value_exactly():
    assert Tally().fold(np.array([0.1])) == Tally(1.0, 0.1)


def test_a_mean_remembers_512_values_and_from_then_on_each_new_one_counts_for_one_of_513():
    full = Tally().fold(np.full(512, 2.0))
    assert full.fold(np.array([2.0 + 513.0])).mean == pytest.approx(3.0, rel=1e-12)
    assert full.fold(np.array([7.0])).count == 512.0


# -- lines -------------------------------------------------------------------------------------------------------------


def test_a_line_of_which_nothing_is_said_costs_nothing_and_has_no_bend():
    assert Line() == Line(0.0, 0.0, 0.0, 0.0, bend_tokens=float("inf"), per_token_beyond_bend_s=0.0)


def test_a_line_without_prices_costs_nothing_but_its_fixed_part():
    assert Line(intercept_s=0.5).at(1000.0, 10.0, 10_000.0) == 0.5
    assert Line(0.5, 1.0, 1.0, 1.0).at() == 0.5


def test_beyond_its_bend_a_line_costs_more_for_every_token_beyond_and_none_before():
    line = Line(0.5, 0.0, 0.0, 0.0, bend_tokens=100.0, per_token_beyond_bend_s=2.0)
    tokens, times = [99.5, 100.0, 100.5], [0.5, 0.5, 1.5]
    assert [line.at(t) for t in tokens] == times
    assert line.at_each(np.array(tokens), np.zeros(3), np.zeros(3)).tolist() == times


# -- what an engine is taken to be -------------------------------------------------------------------------------------


def test_an_engine_of_which_nothing_is_said_has_nothing_to_do():
    assert astuple(EngineLoad()) == (0.0,) * 8


def test_what_an_engine_has_not_said_is_as_the_reference_takes_it():  # reference-semantics 3.5
    assert EngineLimits() == EngineLimits(max_num_batched_tokens=8192, max_num_seqs=512, max_kv_tokens=2_000_000)


def test_five_iterations_of_a_kind_are_enough():
    model = EngineModel()
    for n in range(1, 6):
        assert not model.ready(Kind.DECODE)
        model.learn([0], [0], [n], [1000 * n], [0.01 + 0.001 * n])
    assert model.ready(Kind.DECODE)


# -- capacity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "batch", "found"),
    [
        (128, 127, 127),  # every batch up to 128 is looked at
        (129, 128, 127),  # of 129 all but one: 128 are looked at, evenly spread, the largest among them
        (129, 129, 129),
    ],
)
def test_128_batches_are_looked_at(most, batch, found, decode_model):
    """`batch` is the largest that meets the target."""
    context, line = 1000.0, decode_model.line(Kind.DECODE)
    sla_s = line.at(0.0, batch + 0.5, (batch + 0.5) * context)
    limits = EngineLimits(max_num_batched_tokens=2048, max_num_seqs=most, max_kv_tokens=10_000_000)
    answer = capacity(decode_model, DECODE, limits, RequestShape(isl=900, osl=200), LatencyTargets(None, sla_s))
    assert answer is not None
    assert answer.batch == found
