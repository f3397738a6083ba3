"""The reference's budgets. Golden numbers: reference-semantics 7.5."""

import pytest

from headrace.models.reference.budget import Band, clamp_pair, clamp_single, tolerance


@pytest.mark.parametrize(
    ("p", "d", "gp", "gd", "low", "high", "least", "found"),
    [
        (4, 4, 1, 1, -1, 8, 1, (4, 4)),
        (4, 6, 1, 1, -1, 8, 1, (3, 5)),
        (3, 5, 2, 4, -1, 16, 1, (1, 3)),
        (1, 10, 1, 1, -1, 8, 1, (1, 7)),
        (10, 1, 1, 1, -1, 8, 1, (7, 1)),
        (2, 9, 4, 1, -1, 12, 1, (1, 8)),
        (5, 5, 2, 2, -1, 3, 1, (0, 0)),
        (1, 1, 1, 1, 6, -1, 1, (3, 3)),
        (1, 1, 2, 2, 5, 5, 1, (1, 1)),
        (3, 3, 2, 2, 5, 5, 1, (1, 1)),
        (0, 0, 1, 1, 6, -1, 1, (3, 3)),
        (0, 0, 2, 4, 10, 12, 1, (3, 1)),
        (1, 4, 4, 1, 10, 16, 1, (1, 4)),
        (2, 2, 1, 1, 8, 16, 1, (4, 4)),
        (3, 1, 3, 1, 12, -1, 1, (4, 1)),
        (4, 4, 0, 1, 2, 4, 1, (4, 4)),
        (9, 9, 1, 1, -1, 8, 0, (4, 4)),
        (5, 3, 1, 2, -1, 8, 2, (3, 2)),
        (3, 1, 4, 1, -1, 12, 1, (2, 4)),
        (1, 9, 4, 1, 14, -1, 1, (2, 6)),
    ],
)
def test_prefill_is_scaled_and_decode_gets_the_rest(p, d, gp, gd, low, high, least, found) -> None:
    assert clamp_pair((p, d), (gp, gd), Band(low, high, least)) == found


@pytest.mark.parametrize(
    ("n", "g", "low", "high", "least", "found"),
    [
        (5, 2, -1, 8, 1, 4),
        (4, 2, -1, 8, 1, 4),
        (9, 1, -1, 8, 1, 8),
        (9, 4, -1, 3, 1, 0),
        (1, 2, 6, -1, 1, 3),
        (1, 2, 4, 8, 1, 1),
        (1, 2, 3, 8, 1, 1),
        (1, 2, 5, 8, 1, 3),
        (0, 1, -1, 8, 1, 0),
        (7, 3, -1, 20, 2, 6),
        (1, 0, 4, 8, 1, 1),
    ],
)
def test_one_role_gets_whole_replicas_within_the_band(n, g, low, high, least, found) -> None:
    assert clamp_single(n, g, Band(low, high, least)) == found


def test_only_the_floor_may_be_missed() -> None:
    band = Band(8, 10)
    assert band.holds(7, tolerance([2, 1, 0]))
    assert not band.holds(5, 2)
    assert not band.holds(11, 2)
    assert tolerance([]) == 0
