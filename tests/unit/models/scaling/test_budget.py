"""The GPU budget. Golden numbers: reference-semantics 7.5."""

import pytest

from headrace.models.scaling.budget import Budget, Fitted, Fleet, fit_budget, gpus_of
from headrace.schemas.base import DECODE, PREFILL
from headrace.schemas.reasons import Reason


def fit(ask, gpus, floor=-1, ceiling=-1, minimum=1, current=None) -> Fitted:
    roles = ("prefill", "decode")[: len(ask)]
    return fit_budget(
        Fleet(
            ask=dict(zip(roles, ask, strict=True)),
            current=dict(zip(roles, ask if current is None else current, strict=True)),
            minimum=dict.fromkeys(roles, minimum),
            gpus=dict(zip(roles, gpus, strict=True)),
        ),
        Budget(floor, ceiling),
    )


def counts(*args, **more) -> tuple[int, ...]:
    return tuple(fit(*args, **more).targets.values())


@pytest.mark.parametrize(
    ("ask", "gpus", "floor", "ceiling", "minimum", "fitted"),
    [
        ((4, 4), (1, 1), -1, 8, 1, (4, 4)),
        ((4, 6), (1, 1), -1, 8, 1, (3, 5)),
        ((1, 10), (1, 1), -1, 8, 1, (1, 7)),
        ((10, 1), (1, 1), -1, 8, 1, (7, 1)),
        ((2, 9), (4, 1), -1, 12, 1, (1, 8)),
        ((1, 1), (1, 1), 6, -1, 1, (3, 3)),
        ((1, 1), (2, 2), 5, 5, 1, (1, 1)),
        ((2, 3), (2, 2), 5, 5, 1, (1, 1)),
        ((3, 3), (2, 2), 5, 5, 1, (1, 1)),
        ((2, 2), (1, 1), 8, 16, 1, (4, 4)),
        ((3, 1), (3, 1), 12, -1, 1, (4, 1)),
        ((9, 9), (1, 1), -1, 8, 0, (4, 4)),
        ((5,), (2,), -1, 8, 1, (4,)),
        ((4,), (2,), -1, 8, 1, (4,)),
        ((9,), (1,), -1, 8, 1, (8,)),
        ((1,), (2,), 6, -1, 1, (3,)),
        ((1,), (2,), 5, 8, 1, (3,)),
        ((7,), (3,), -1, 20, 2, (6,)),
    ],
)
def test_where_the_reference_is_right_we_agree(ask, gpus, floor, ceiling, minimum, fitted):
    assert counts(ask, gpus, floor, ceiling, minimum) == fitted


@pytest.mark.parametrize(
    ("ask", "gpus", "floor", "ceiling", "minimum", "fitted", "theirs"),
    [
        ((3, 5), (2, 4), -1, 16, 1, (2, 3), (1, 3)),  # a floor after a product loses replicas that would fit
        ((5, 3), (1, 2), -1, 8, 2, (4, 2), (3, 2)),  # likewise
        ((3, 1), (4, 1), -1, 12, 1, (2, 1), (2, 4)),  # a ceiling must not raise decode (weak spot 14; dynamo#13064)
        ((1, 9), (4, 1), 14, -1, 1, (1, 10), (2, 6)),  # a floor must not cut decode (weak spot 14)
        ((1, 4), (4, 1), 10, 16, 1, (1, 6), (1, 4)),  # a floor that whole replicas can meet is met
        ((1,), (2,), 4, 8, 1, (2,), (1,)),  # likewise
        ((5, 5), (2, 2), -1, 3, 1, (1, 1), (0, 0)),  # an impossible ceiling must not scale everything to zero
        ((9,), (4,), -1, 3, 1, (1,), (0,)),  # likewise
    ],
)
def test_where_the_reference_is_wrong_we_differ(ask, gpus, floor, ceiling, minimum, fitted, theirs):
    assert counts(ask, gpus, floor, ceiling, minimum) == fitted != theirs


def test_budget_ceiling_wins_over_the_floor():  # case T31, dynamo#13144
    fitted = fit((5,), (2,), floor=5, ceiling=5)
    assert (fitted.targets, fitted.floor_unmet, fitted.over_gpus) == ({"prefill": 2}, 1, 0)
    assert fitted.rules == {"prefill": Reason.GPU_BUDGET_CEILING}


def test_a_floor_between_two_replicas_is_named_as_unmet():  # case T31
    fitted = fit((1,), (2,), floor=3, ceiling=3)
    assert (fitted.targets, fitted.floor_unmet) == ({"prefill": 1}, 2 - 1)


def test_a_shrink_never_grows_another_role():  # case T32, dynamo#13064
    assert counts((3, 1), (4, 1), ceiling=12, current=(4, 1)) == (2, 1)


def test_growth_is_given_back_before_anything_that_runs():
    assert counts((4, 6), (1, 1), ceiling=8, current=(4, 4)) == (4, 4)
    assert counts((6, 6), (1, 1), ceiling=8, current=(4, 2)) == (5, 3)


def test_a_lowered_ceiling_shrinks_what_runs():
    assert counts((2, 2), (1, 1), ceiling=3, current=(2, 2)) == (1, 2)  # reference-semantics 6.9: steady, budget 3


def test_a_floor_takes_a_shrink_back_before_anything_grows():
    assert counts((3, 1), (1, 1), floor=6, current=(3, 3)) == (3, 3)
    assert counts((3, 1), (1, 1), floor=8, current=(3, 3)) == (4, 4)


def test_what_is_within_the_budget_stays():
    fitted = fit((3, 1), (4, 1), floor=10, ceiling=13)
    assert (fitted.targets, fitted.rules) == ({"prefill": 3, "decode": 1}, {})


def test_without_a_budget_shapes_do_not_matter():
    assert counts((7, 9), (None, None), current=(1, 1)) == (7, 9)


# case T34, dynamo#11220: unknown GPU counts


def test_under_a_ceiling_an_unknown_shape_may_shrink_and_not_grow():
    fitted = fit((3, 1), (None, 1), ceiling=8, current=(2, 2))
    assert fitted.targets == {"prefill": 2, "decode": 1}
    assert fitted.rules == {"prefill": Reason.GPU_SHAPE_UNKNOWN}


def test_one_unknown_shape_stops_the_growth_of_all():
    assert counts((2, 5), (None, 1), ceiling=8, current=(2, 2)) == (2, 2)


def test_above_a_floor_an_unknown_shape_may_grow_and_not_shrink():
    assert counts((3, 1), (None, 1), floor=4, current=(2, 2)) == (3, 2)


def test_between_two_bounds_an_unknown_shape_stays():
    assert counts((3, 1), (None, 1), floor=4, ceiling=8, current=(2, 2)) == (2, 2)


# what cannot be met


def test_where_the_minimums_do_not_fit_nothing_grows():
    fitted = fit((3, 3), (2, 2), ceiling=3, current=(1, 0))
    assert fitted.targets == {"prefill": 1, "decode": 0}
    assert fit((3, 3), (2, 2), ceiling=3, current=(5, 5)).over_gpus == 1


def test_a_ceiling_of_zero_keeps_the_minimums_of_what_runs():
    fitted = fit((3,), (1,), ceiling=0, current=(3,))
    assert (fitted.targets, fitted.over_gpus) == ({"prefill": 1}, 1)


def test_roles_are_data():  # dynamo#8261: an encoder role
    fleet = Fleet(
        ask={"encode": 4, "prefill": 4, "decode": 8},
        current={"encode": 1, "prefill": 1, "decode": 1},
        minimum=dict.fromkeys(("encode", "prefill", "decode"), 1),
        gpus=dict.fromkeys(("encode", "prefill", "decode"), 1),
    )
    assert fit_budget(fleet, Budget(ceiling_gpus=10)).targets == {"encode": 3, "prefill": 2, "decode": 5}


def test_a_hundred_thousand_replicas_take_no_longer_than_a_few():
    fitted = fit((100_000, 100_000), (1, 8), ceiling=100_000, current=(10, 10))
    assert fitted.over_gpus == 0
    assert 100_000 - 8 < fitted.targets["prefill"] + 8 * fitted.targets["decode"] <= 100_000
    fitted = fit((10, 10), (1, 8), floor=1_000_000, ceiling=1_000_001, current=(10, 10))
    assert fitted.floor_unmet == 0


def test_what_fits_below_the_ceiling_after_a_shrink_is_given_back() -> None:
    # 10 x 2 + 4 x 4 GPUs against 16: one large replica fewer leaves room for small ones
    fleet = Fleet({PREFILL: 10, DECODE: 4}, {PREFILL: 10, DECODE: 4}, {PREFILL: 0, DECODE: 0}, {PREFILL: 2, DECODE: 4})
    fitted = fit_budget(fleet, Budget(-1, 16))
    assert gpus_of(fitted.targets, {PREFILL: 2, DECODE: 4}) == 16
