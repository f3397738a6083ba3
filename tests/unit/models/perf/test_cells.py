"""Cells: what a load has shown, how long it is remembered, and what is too far off to be believed."""

import numpy as np
import pytest

from headrace.models.perf.cells import Cells, Grid, edges

ONE_LOAD = Grid(((4.0, 15.0, 16),))
LOAD = 100.0


def fold(cells: Cells, *times: float) -> Cells:
    """Iterations of one load that took so long."""
    return cells.fold(np.array([[LOAD] * len(times), times]))


def shown(*times: float) -> Cells:
    return fold(Cells.empty(ONE_LOAD), *times)


def mean_of(cells: Cells) -> float:
    [cell] = np.flatnonzero(cells.count)
    return float(cells.mean[cell, -1])


def taken_for(cells: Cells, time: float) -> float:
    """What one more iteration that took `time` is taken for."""
    [cell] = np.flatnonzero(cells.count)
    rows = float(cells.count[cell])
    return mean_of(cells) + (mean_of(fold(cells, time)) - mean_of(cells)) * (rows + 1)


# -- the grid ----------------------------------------------------------------------------------------------------------


def test_the_bounds_of_cells_are_powers_of_two_evenly_spread():
    assert edges(0.0, 4.0, 4).tolist() == [2.0, 4.0, 8.0]


def test_a_load_on_the_bound_belongs_to_the_cell_above_and_the_outer_cells_are_open():
    grid = Grid(((0.0, 4.0, 4),))
    assert grid.cell_of(np.array([[0.0, 1.9, 2.0, 4.0, 7.9, 8.0, 1e9]])).tolist() == [0, 0, 1, 2, 2, 3, 3]


def test_two_loads_have_a_cell_for_each_pair():
    grid = Grid(((0.0, 4.0, 4), (0.0, 2.0, 2)))
    assert grid.cells == 8
    assert grid.cell_of(np.array([[0.0, 0.0, 9.0], [0.0, 2.0, 0.0]])).tolist() == [0, 1, 6]


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_a_cell_that_is_full_gives_each_new_row_one_part_in_65():
    full = shown(*[1.0] * 64)
    assert mean_of(fold(full, 1.13)) == pytest.approx(1.002, rel=1e-12)
    assert fold(full, 1.13).count.max() == 64.0


def test_the_spread_of_a_full_cell_fades_as_its_rows_do():
    [cell] = np.flatnonzero(shown(1.0).count)
    full = shown(*[0.9, 1.1] * 32)
    assert full.moment[cell, -1] == pytest.approx(64 * 0.01)
    assert fold(full, 1.0).moment[cell, -1] == pytest.approx(64 * 0.01 * 64 / 65)


def test_the_first_row_of_a_cell_is_its_mean():
    first = shown(0.3)
    assert mean_of(first) == 0.3
    assert first.count.max() == 1.0


def test_empty_cells_are_no_division_by_zero():
    with np.errstate(all="raise"):
        fold(shown(1.0, 2.0), 1.5)


def test_a_cell_knows_how_many_rows_had_come_when_it_got_its_newest():
    cells = fold(shown(1.0, 1.0), 1.0).fold(np.array([[9000.0], [1.0]]))
    assert sorted(cells.last[np.flatnonzero(cells.count)].tolist()) == [3.0, 4.0]


def test_no_rows_change_nothing():
    cells = shown(1.0)
    assert cells.fold(np.empty((2, 0))) is cells


# -- what was known beforehand, beside ---------------------------------------------------------------------------------


def both() -> tuple[Cells, Cells]:
    """Two rows of 100 tokens, one of 1000 and one of 20; beside them one each of 100, 1000 and 9000."""
    own = fold(Cells.empty(ONE_LOAD), 1.0, 1.2).fold(np.array([[1000.0], [1.0]])).fold(np.array([[20.0], [0.7]]))
    other = fold(Cells.empty(ONE_LOAD), 2.0).fold(np.array([[1000.0, 9000.0], [2.0, 3.0]]))
    return own, other


def test_cells_beside_others_are_their_weighted_mean():
    own, other = both()
    with np.errstate(all="raise"):
        found = own.beside(other, 0.5)
    used = np.flatnonzero(found.count)  # 20, 100, 1000, 9000 tokens
    assert found.count[used].tolist() == [1.0, 2.5, 1.5, 0.5]
    assert found.mean[used, -1].tolist() == pytest.approx([0.7, 3.2 / 2.5, 2.0 / 1.5, 3.0])
    assert found.moment[used, -1].tolist() == pytest.approx([0.0, 0.02 + 0.9**2 * 2 * 0.5 / 2.5, 1 / 3, 0.0])
    assert np.delete(found.mean, used, axis=0).any() == np.False_


def test_what_was_known_beforehand_never_goes_stale_and_ages_nothing():
    own, other = both()
    found = own.beside(other, 0.5)
    used = np.flatnonzero(found.count)
    assert found.seen == 4 + 3
    assert (found.seen - found.last[used]).tolist() == [0.0, 2.0, 1.0, 0.0]


def test_nothing_beside_changes_nothing():
    own, _ = both()
    assert own.beside(Cells.empty(ONE_LOAD), 0.5) is own


# -- what is too far off -----------------------------------------------------------------------------------------------


def test_a_steady_cell_of_eight_rows_believes_half_as_much_again():
    steady = shown(*[1.0] * 8)
    assert taken_for(steady, 1.4) == pytest.approx(1.4)
    assert taken_for(steady, 9.0) == pytest.approx(1.5)
    assert taken_for(steady, 0.1) == pytest.approx(0.5)


def test_a_cell_of_seven_rows_believes_what_comes_alone():
    assert taken_for(shown(*[1.0] * 7), 9.0) == pytest.approx(9.0)


def test_a_cell_that_varies_believes_four_standard_deviations():
    assert taken_for(shown(*[0.75, 1.25] * 4), 9.0) == pytest.approx(2.0)


def test_of_four_first_rows_the_one_far_off_is_pulled_to_twice_their_median():
    assert mean_of(shown(1.0, 1.0, 1.0, 9.0)) == pytest.approx((3 * 1.0 + 2.0) / 4)


def test_of_three_first_rows_nobody_knows_which_is_far_off():
    assert mean_of(shown(1.0, 1.0, 9.0)) == pytest.approx(11.0 / 3)


def test_first_rows_that_vary_are_believed_four_standard_deviations_as_their_median_tells_them():
    """The median is 1.0, the median of the distances from it 0.2; 1.4826 of that is a normal distribution's sigma."""
    times = (0.6, 0.8, 0.8, 1.0, 1.2, 1.4, 9.0)
    pulled = 1.0 + 4 * 1.4826 * 0.2
    assert mean_of(shown(*times)) == pytest.approx((sum(times) - 9.0 + pulled) / 7)


@pytest.mark.parametrize(
    ("load", "time", "taken"),
    [
        (20.0, 2.4, 2.4),  # twice the load: what twice the time expects, and half as much of the mean
        (20.0, 9.0, 2.5),
        (20.0, 0.6, 0.6),  # or no more time than the half
        (20.0, 0.1, 0.5),
        (5.0, 1.4, 1.4),  # half the load: what the same time expects, and half as much
        (5.0, 9.0, 1.5),
        (5.0, 0.1, 0.1),  # or half the time, and half as much less
    ],
)
def test_between_flat_and_proportional_to_the_load_all_is_expected(load, time, taken):
    steady = Cells.empty(ONE_LOAD).fold(np.array([[10.0] * 8, [1.0] * 8]))
    [cell] = np.flatnonzero(steady.count)
    after = steady.fold(np.array([[load], [time]]))
    assert 9 * after.mean[cell, -1] - 8.0 == pytest.approx(taken)


def test_a_load_below_one_token_is_a_load():
    steady = Cells.empty(ONE_LOAD).fold(np.array([[0.5] * 8, [1.0] * 8]))
    assert 9 * steady.fold(np.array([[1.0], [2.4]])).mean[0, -1] - 8.0 == pytest.approx(2.4)
