"""Who shall own which partition: even, stable, and the same answer wherever it is asked."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.runtime.shards import assign

MEMBERS = st.lists(st.sampled_from([f"m{i}" for i in range(12)]), min_size=1, max_size=12, unique=True)
PARTITIONS = st.sets(st.integers(0, 127), max_size=128)
HELD = st.dictionaries(st.integers(0, 127), st.sampled_from([f"m{i}" for i in range(12)]))


@given(PARTITIONS, MEMBERS, HELD)
def test_every_partition_has_one_owner_and_no_member_has_two_more_than_another(
    partitions: set[int], members: list[str], held: dict[int, str]
) -> None:
    found = assign(partitions, members, held)
    assert set(found) == partitions
    counts = Counter(members) - Counter(members)
    counts.update(found.values())
    sizes = [counts[m] for m in members]
    assert set(counts) <= set(members)
    assert max(sizes) - min(sizes) <= 1


@given(PARTITIONS, MEMBERS, HELD, st.randoms())
def test_the_order_of_what_is_known_does_not_matter(
    partitions: set[int], members: list[str], held: dict[int, str], rng: object
) -> None:
    shuffled = list(members)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    again = assign(sorted(partitions, reverse=True), shuffled, dict(reversed(held.items())))
    assert again == assign(partitions, members, held)


@given(PARTITIONS, MEMBERS)
def test_what_is_even_stays_as_it_is(partitions: set[int], members: list[str]) -> None:
    settled = assign(partitions, members, {})
    assert assign(partitions, members, settled) == settled


@given(PARTITIONS, MEMBERS)
def test_a_newcomer_gets_its_share_and_nothing_else_moves(partitions: set[int], members: list[str]) -> None:
    before = assign(partitions, members, {})
    after = assign(partitions, [*members, "new"], before)
    moved = {p for p in partitions if after[p] != before[p]}
    assert {after[p] for p in moved} <= {"new"}
    assert len(moved) in (len(partitions) // (len(members) + 1), -(-len(partitions) // (len(members) + 1)))


@given(PARTITIONS, MEMBERS)
def test_when_one_goes_only_what_it_had_moves(partitions: set[int], members: list[str]) -> None:
    before = assign(partitions, [*members, "old"], {})
    left = {p: m for p, m in before.items() if m != "old"}
    after = assign(partitions, members, left)
    assert all(after[p] == m for p, m in left.items())


def test_without_members_nobody_owns_anything() -> None:
    assert assign({1, 2}, [], {}) == {}
