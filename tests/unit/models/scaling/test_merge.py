"""Merging opinions. Golden numbers: reference-semantics 8.2 (baseline prefill 2, decode 3)."""

from itertools import permutations

import pytest
from world import proposal

from headrace.models.scaling.merge import merge, rejection
from headrace.schemas.reasons import Reason


def test_without_opinions_the_baseline_stays():
    assert [merge(role, n, []).replicas for role, n in (("prefill", 2), ("decode", 3))] == [2, 3]


def test_the_smallest_priority_number_sets():
    low = proposal("SET", decode=5, priority=10, proposal_id="a")
    high = proposal("SET", decode=7, priority=0, proposal_id="b")
    assert merge("decode", 3, [low, high]).replicas == 7


def test_of_equal_priorities_the_first_by_id_sets():
    # The reference takes the first in its list; a bus has no list, so the id decides.
    assert (
        merge(
            "decode", 3, [proposal("SET", decode=7, proposal_id="b"), proposal("SET", decode=5, proposal_id="a")]
        ).replicas
        == 5
    )


def test_of_equal_priorities_and_ids_the_first_by_source_sets():
    twins = [proposal("SET", source=s, decode=n) for s, n in (("b", 7), ("a", 5))]
    assert {merge("decode", 3, order).replicas for order in permutations(twins)} == {5}


def test_a_floor_beats_a_ceiling():
    opinions = [proposal("AT_LEAST", decode=8), proposal("AT_MOST", decode=4), proposal("SET", decode=5)]
    merged = merge("decode", 3, opinions)
    assert merged.replicas == 8
    assert [(b.rule, b.before, b.after) for b in merged.bounds] == [
        (Reason.CLAMPED_TO_CEILING, 5, 4),
        (Reason.CLAMPED_TO_FLOOR, 4, 8),
    ]


def test_a_ceiling_bounds_the_baseline_too():
    merged = merge("decode", 3, [proposal("AT_MOST", decode=1)])
    assert (merged.replicas, merged.winner, merged.bounds[0].rule) == (1, None, Reason.CLAMPED_TO_CEILING)


def test_a_set_beats_the_baseline_within_the_ceiling():
    # In the reference's CONSTRAIN stage SET 10 with AT_MOST 2 gives 2.
    assert merge("decode", 3, [proposal("SET", decode=10), proposal("AT_MOST", decode=2)]).replicas == 2


def test_the_highest_floor_and_the_lowest_ceiling_count():
    opinions = [
        proposal(k, decode=n, proposal_id=str(n)) for k, n in (("AT_LEAST", 4), ("AT_LEAST", 6), ("AT_MOST", 9))
    ]
    assert merge("decode", 3, opinions).replicas == 6
    opinions = [proposal(k, decode=n, proposal_id=str(n)) for k, n in (("AT_MOST", 9), ("AT_MOST", 5), ("SET", 20))]
    assert merge("decode", 3, opinions).replicas == 5


def test_an_opinion_about_another_role_is_none():
    merged = merge("prefill", 2, [proposal("SET", decode=9), proposal("AT_LEAST", decode=9)])
    assert (merged.replicas, list(merged.used)) == (2, [])


def test_used_are_those_that_made_the_count_what_it_is():
    winner = proposal("SET", decode=10, priority=5, proposal_id="winner")
    outranked = proposal("SET", decode=2, priority=6, proposal_id="outranked")
    satisfied = proposal("AT_LEAST", decode=1, proposal_id="satisfied")
    bound = proposal("AT_MOST", decode=2, proposal_id="bound")
    assert list(merge("decode", 3, [outranked, satisfied, winner, bound]).used) == [winner, bound]


def test_any_reject_is_found_and_the_most_important_is_named():
    late, early = proposal("REJECT", priority=99, proposal_id="x"), proposal("REJECT", priority=1, proposal_id="y")
    assert rejection([proposal("SET", decode=1), late, early]) is early
    assert rejection([proposal("SET", decode=1)]) is None


@pytest.mark.parametrize("replicas", [0, 100_000])
def test_extreme_counts_pass(replicas):
    assert merge("decode", 3, [proposal("SET", decode=replicas)]).replicas == replicas
