import doctest

import pytest

from headrace.models.scaling import step
from headrace.models.scaling.step import limit_step, survivors


def test_the_examples_hold():
    assert doctest.testmod(step).failed == 0


@pytest.mark.parametrize(
    ("current", "wanted", "to"),
    [(2, 30, 10), (20, 1, 12), (5, 6, 6), (5, 5, 5), (5, 13, 13), (5, 14, 13), (9, 1, 1), (10, 1, 2), (0, 3, 3)],
)
def test_a_forecast_moves_at_most_eight_replicas_at_once(current, wanted, to):  # case T25, dynamo#14296
    assert limit_step(current, wanted, 8) == to


@pytest.mark.parametrize("current", range(0, 30, 3))
@pytest.mark.parametrize("wanted", range(0, 30, 4))
def test_a_limited_step_keeps_its_direction_and_never_passes_the_aim(current, wanted):  # case T25
    limited = limit_step(current, wanted, 8)
    assert min(current, wanted) <= limited <= max(current, wanted)
    assert (limited == current) == (wanted == current)


@pytest.mark.parametrize(
    ("workers", "starting", "least", "left"),
    [
        (3, 0, 1, 2),
        (2, 0, 1, 1),
        (1, 0, 1, None),
        (1, 1, 1, 1),
        (3, 2, 1, 2),
        (3, 0, 3, None),
        (2, 1, 3, None),
        (1, 0, 0, None),
    ],
)
def test_a_step_down_leaves_one_fewer_down_to_the_least(workers, starting, least, left):
    assert survivors(workers, starting, least) == left
