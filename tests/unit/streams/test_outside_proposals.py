"""Proposals of others: kept while they last, the newest version of each."""

import msgspec
import pytest
from world import proposal

from headrace.streams.agents.proposals import MAX_PROPOSALS, OutsideProposals


@pytest.fixture
def kept() -> OutsideProposals:
    return OutsideProposals(("prefill", "decode"))


def live(kept: OutsideProposals, now: float) -> list[tuple[str, str, dict[str, int]]]:
    return [(p.source, p.proposal_id, p.targets) for p in kept.live(now)]


def test_a_proposal_is_in_force_from_its_issue_to_its_end(kept):
    kept.handle(proposal("SET", at=10.0, until=20.0, decode=3), 5.0)
    assert [bool(kept.live(now)) for now in (9.9, 10.0, 19.9)] == [False, True, True]
    assert kept.live(20.0) == []
    assert kept.kept == {}


def test_one_that_has_ended_is_named_and_not_kept(kept):
    assert kept.handle(proposal("SET", until=20.0, decode=3), 20.0) == "proposal p of ops had expired when it came"
    assert kept.kept == {}


def test_the_newest_version_of_an_id_counts_in_whatever_order_they_come(kept):
    for at, n in ((1.0, 3), (3.0, 5), (2.0, 4), (3.0, 9), (1.0, 3)):
        kept.handle(proposal("SET", at=at, decode=n), 10.0)
    assert live(kept, 10.0) == [("ops", "p", {"decode": 5})]


def test_an_author_withdraws_by_a_version_that_has_ended(kept):
    first = proposal("AT_LEAST", at=1.0, until=100.0, decode=5)
    kept.handle(first, 1.0)
    kept.handle(proposal("AT_LEAST", at=2.0, until=2.0, decode=5), 3.0)
    assert live(kept, 3.0) == []
    kept.handle(first, 4.0)  # a repeat does not bring it back
    assert live(kept, 4.0) == []
    assert live(kept, 100.0) == []
    assert kept.kept == {}


def test_ids_belong_to_their_source(kept):
    kept.handle(proposal("SET", source="a/b", proposal_id="c", decode=1), 0.0)
    kept.handle(proposal("SET", source="a", proposal_id="b/c", decode=2), 0.0)
    assert live(kept, 1.0) == [("a", "b/c", {"decode": 2}), ("a/b", "c", {"decode": 1})]


def test_the_order_of_arrival_makes_no_difference(kept):
    proposals = [proposal("SET", source=s, proposal_id=i, decode=1) for s in "cab" for i in "21"]
    other = OutsideProposals(("prefill", "decode"))
    for p in proposals:
        kept.handle(p, 0.0)
    for p in reversed(proposals):
        other.handle(p, 0.0)
    assert kept.live(1.0) == other.live(1.0)


def test_roles_that_are_not_planned_are_named_and_dropped(kept):
    note = kept.handle(proposal("SET", decode=3, encode=1, agg=2), 0.0)
    assert note == "proposal p of ops names roles that are not planned: agg, encode"
    assert live(kept, 1.0) == [("ops", "p", {"decode": 3})]


def test_our_own_echo_is_not_heard(kept):
    assert kept.handle(proposal("SET", source="headrace.load", decode=3), 0.0) is None
    assert kept.kept == {}


def test_a_flood_is_bounded(kept):
    for i in range(MAX_PROPOSALS):
        assert kept.handle(proposal("SET", proposal_id=str(i), reason="x" * 100_000, decode=1), 0.0) is None
    assert "more than 256" in kept.handle(proposal("SET", proposal_id="late", decode=1), 0.0)
    assert kept.handle(proposal("SET", proposal_id="7", at=1.0, decode=2), 1.0) is None  # a new version is not one more
    assert len(msgspec.json.encode(kept.to_state())) < 256 * 600


def test_state_comes_back_as_it_was(kept):
    for i in range(5):
        kept.handle(proposal("AT_MOST", proposal_id=str(i), decode=i), 0.0)
    other = OutsideProposals(("prefill", "decode"))
    other.load_state(msgspec.json.decode(msgspec.json.encode(kept.to_state())))
    assert other.live(1.0) == kept.live(1.0)
