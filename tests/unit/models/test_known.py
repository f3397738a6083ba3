import doctest
import math

import pytest

from headrace.models import known
from headrace.models.known import Known, Unknown, measure


def test_zero_is_known():
    assert measure(0.0) == Known(0.0)


def test_an_integer_becomes_a_float():
    assert measure(3) == Known(3.0)


def test_nothing_is_unknown_and_says_why():
    assert measure(None, "no scrape") == Unknown("no scrape")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_unknown(value):  # case T6
    assert isinstance(measure(value, "isl"), Unknown)


def test_a_numpy_nan_is_unknown():
    import numpy as np

    assert measure(np.float64("nan"), "isl") == Unknown("isl: nan")


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(known).failed == 0
