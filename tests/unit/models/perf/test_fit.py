"""The line through cells: what counts how much, and what happens where the data hardly tell."""

from math import sqrt

import numpy as np
import pytest

from headrace.models.perf.cells import Cells, Grid
from headrace.models.perf.fit import Moments, fit, noise_of, table_of

AXIS = (4.0, 15.0, 16)


def moments(rows: float, slope: float, left_over: float, mean_x: float = 1.0, mean_y: float = 1.0) -> Moments:
    """One feature of variance 1 (in means), a price of `slope` mean times, and the variance that it leaves over."""
    return Moments(rows, (mean_x,), mean_y, ((1.0,),), (slope,), slope**2 + left_over)


def cells_of(*loads: tuple[float, float, int]) -> Cells:
    """(load, seconds, rows) one after the other."""
    cells = Cells.empty(Grid((AXIS,)))
    for load, seconds, rows in loads:
        cells = cells.fold(np.array([[load] * rows, [seconds] * rows]))
    return cells


# -- noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "free"), [(102.0, 100.0), (4.0, 2.0), (3.0, 1.0), (2.0, 1.0)])
def test_noise_is_what_is_left_over_per_free_row(rows, free):
    assert noise_of(moments(rows, 0.5, 0.04)) == pytest.approx(sqrt(0.04 * rows / free), rel=1e-9)


def test_a_second_price_takes_a_second_free_row():
    both = Moments(5.0, (1.0, 1.0), 1.0, ((1.0, 0.0), (0.0, 1.0)), (0.25, 0.25), 0.125 + 0.04)
    assert noise_of(both) == pytest.approx(sqrt(0.04 * 5.0 / 2.0), rel=1e-9)


def test_data_without_noise_have_none():
    assert noise_of(moments(100.0, 0.5, 0.0)) == pytest.approx(0.0, abs=1e-5)


def test_less_than_nothing_left_over_is_rounding():
    assert noise_of(moments(100.0, 1.0, -1e-11)) == 0.0


# -- prices ------------------------------------------------------------------------------------------------------------


def test_a_price_is_per_unit_of_load_and_the_fixed_cost_is_the_rest_of_the_mean_time():
    found = fit(moments(100.0, 0.25, 0.0, mean_x=50.0, mean_y=0.2))
    assert found is not None
    assert found.slopes == pytest.approx((0.25 * 0.2 / 50.0,))
    assert found.intercept == pytest.approx(0.75 * 0.2)


def test_where_the_fixed_cost_would_be_negative_the_line_goes_through_the_origin():
    """The least squares of time against load, both in means: (1 + 1.5) / (1 + 1)."""
    found = fit(moments(100.0, 1.5, 0.0))
    assert found is not None
    assert (found.slopes, found.intercept) == (pytest.approx((1.25,)), 0.0)


@pytest.mark.parametrize(("rows", "error"), [(102.0, 0.1), (3.0, 0.5), (2.0, 0.5)])
def test_where_no_price_is_positive_the_measured_one_is_taken_at_one_standard_error(rows, error):
    left_over = error**2 * max(1.0, rows - 2.0)
    found = fit(moments(rows, -0.05, left_over))
    assert found is not None
    assert found.slopes == pytest.approx((error,), rel=1e-4)


def test_a_standard_error_above_the_mean_time_is_no_price_above_it():
    found = fit(moments(10.0, -2.0, 1000.0))
    assert found is not None
    assert found.slopes == (1.0,)


@pytest.mark.parametrize(("slope", "believed"), [(-0.25, True), (-0.29, True), (-0.31, False), (-0.35, False)])
def test_three_standard_errors_below_zero_prove_that_more_work_takes_less_time(slope, believed):
    assert (fit(moments(102.0, slope, 1.0)) is not None) is believed  # one standard error is 0.1


def test_features_that_move_together_share_what_they_cost_and_cost_it_once():
    together = Moments(100.0, (1.0, 1.0), 1.0, ((1.0, 1.0), (1.0, 1.0)), (0.5, 0.5), 0.25)
    found = fit(together)
    assert found is not None
    assert sum(found.slopes) == pytest.approx(0.5, rel=1e-6)


def test_features_that_move_together_by_orders_of_magnitude_determine_nothing_alone():
    """The tie between them is lost in the rounding of numbers of this size."""
    found = fit(Moments(100.0, (1.0, 1.0), 1.0, ((1e3, 1e3), (1e3, 1e3)), (500.0, 500.0), 250.0))
    assert found is not None
    assert sum(found.slopes) == pytest.approx(0.5, rel=1e-6)


def test_where_neither_price_is_positive_one_is_taken_and_the_other_is_none():
    found = fit(Moments(103.0, (1.0, 1.0), 1.0, ((1.0, 0.0), (0.0, 1.0)), (-0.05, -0.05), 0.005 + 1.0))
    assert found is not None
    assert found.slopes == (pytest.approx(0.1, rel=0.01), 0.0)


def test_a_surely_negative_price_without_any_noise_is_refused():
    assert fit(moments(102.0, -0.25, -1e-11)) is None


def test_where_load_hardly_varies_the_fixed_cost_is_held_at_zero_as_firmly_as_one_row_in_a_hundred_would():
    """A load that varies by a thousandth and times with a noise of 0.1: the slope's own error is far above one."""
    spread, noise2, rows = 1e-6, 0.01, 100.0
    m = Moments(rows, (1.0,), 1.0, ((spread,),), (0.0,), noise2)
    found = fit(m)
    assert found is not None
    prior = 0.01 * noise_of(m) ** 2 / rows
    assert found.slopes == pytest.approx((prior / (prior + spread),), rel=1e-2)


def test_a_load_that_was_never_there_has_no_price_and_spoils_no_other():
    cells = Cells.empty(Grid(((0.0, 10.0, 8), (8.0, 23.0, 8))))
    batch = np.arange(1.0, 65.0)
    table = table_of(cells.fold(np.array([batch, 0.0 * batch, 0.010 + 1e-4 * batch])), relative=False)
    assert table is not None
    found = fit(table.moments())
    assert found is not None
    assert found.slopes == pytest.approx((1e-4, 0.0))
    assert found.intercept == pytest.approx(0.010)


# -- what a cell counts for --------------------------------------------------------------------------------------------


def test_a_cell_that_was_not_touched_for_twice_4096_rows_counts_half():
    old, busy = cells_of((20.0, 0.010, 64)), [(5000.0, 0.012)] * 512
    for _ in range(16):
        old = old.fold(np.array(busy).T)
    table = table_of(old, relative=False)
    assert table is not None
    assert table.share.tolist() == pytest.approx([0.5, 1.0], rel=1e-9)


def test_a_cell_counts_fully_for_the_first_4096_rows_without_it():
    old = cells_of((20.0, 0.010, 64))
    for _ in range(8):
        old = old.fold(np.array([(5000.0, 0.012)] * 512).T)
    table = table_of(old, relative=False)
    assert table is not None
    assert table.share.tolist() == [1.0, 1.0]


def test_above_25_ms_relative_errors_count_and_below_it_absolute_ones():
    table = table_of(cells_of((20.0, 0.010, 9), (1000.0, 0.025, 9), (9000.0, 0.100, 9)), relative=True)
    assert table is not None
    assert table.share.tolist() == pytest.approx([1.0, 1.0, (0.025 / 0.100) ** 2], rel=1e-9)


@pytest.mark.parametrize("times", [8.0, 1 / 8.0])
def test_a_cell_eight_times_off_the_line_of_the_others_counts_a_quarter(times):
    """Beyond four times, trust falls with the square."""
    line = [(2.0**k, 1e-5 * 2.0**k, 64) for k in (4, 5, 6, 7, 8, 12, 13, 14)]
    table = table_of(cells_of(*line, (1024.0, times * 1e-5 * 1024, 1)), relative=False)
    assert table is not None
    [odd] = np.flatnonzero(table.rows == 1.0)
    assert table.share[odd] == pytest.approx(0.25, rel=0.1)
    assert np.delete(table.share, odd).tolist() == [1.0] * 8
