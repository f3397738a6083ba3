"""What a process knows of the others: from the log alone, whose order and time are the same for all."""

import msgspec

from headrace.connectors.bus.base import Message
from headrace.streams.runtime.shards import DELETED, Claim, Member, View, claim_key, member_key

LEASE_S, LONGEST_S = 3.0, 1.0


class Log:
    """Messages as the bucket would give them."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.position = 0

    def put(self, key: str, data: bytes, at: float, *, deleted: bool = False) -> None:
        self.position += 1
        headers = dict([DELETED]) if deleted else {}
        self.view.take(Message("shards", key, self.position, data, headers, at), LONGEST_S)

    def renew(self, name: str, at: float, *, group: str = "main", **more: object) -> None:
        member = Member(
            id=name, group=group, host="h", pid=1, version="0", since=0.0, lease_s=LEASE_S, **more  # type: ignore[arg-type]
        )  # fmt: skip
        self.put(member_key(name), msgspec.json.encode(member), at)

    def claim(self, name: str, partition: int, at: float = 0.0) -> int:
        claim = Claim(group="main", partition=partition, member=name, since=at)
        self.put(claim_key(("main", partition)), msgspec.json.encode(claim), at)
        return self.position


def alive(view: View) -> list[str]:
    return sorted(m.id for m in view.alive("main"))


def test_one_that_says_nothing_while_we_are_heard_has_lost_its_lease() -> None:
    view = View(me="a")
    log = Log(view)
    log.renew("b", 100.0)
    for at in (100.1, 100.6, 101.1, 101.6, 102.1, 102.6, 103.0):
        log.renew("a", at)
    assert alive(view) == ["a", "b"]
    log.renew("a", 103.2)
    assert alive(view) == ["a"]
    log.renew("b", 103.3)
    assert alive(view) == ["a", "b"]


def test_while_nobody_is_heard_nobody_grows_silent() -> None:
    view = View(me="a")
    log = Log(view)
    log.renew("b", 100.0)
    log.renew("a", 100.1)
    log.renew("a", 900.0)  # the broker, or our connection, was away
    assert view.members["b"].silent_s == LONGEST_S
    assert alive(view) == ["a", "b"]


def test_a_broker_clock_that_is_set_back_changes_nothing() -> None:
    view = View(me="a")
    log = Log(view)
    log.renew("b", 100.0)
    log.renew("a", 100.1)
    log.renew("a", 50.0)
    assert view.members["b"].silent_s == 0.0


def test_somebody_who_only_looks_judges_nobody() -> None:
    view = View()
    log = Log(view)
    for at in range(100):
        log.renew("b", float(at))
    assert alive(view) == ["b"]


def test_one_that_leaves_may_own_nothing_but_keeps_its_lease() -> None:
    view = View(me="a")
    log = Log(view)
    log.renew("a", 1.0)
    log.renew("b", 1.0, leaving=True)
    assert alive(view) == ["a"]
    assert view.leased("b")
    log.put(member_key("b"), b"", 2.0, deleted=True)
    assert not view.leased("b")


def test_a_claim_is_followed_by_the_revision_that_the_next_one_must_name() -> None:
    view = View(me="a")
    log = Log(view)
    assert view.revision(("main", 7)) == 0
    position = log.claim("b", 7)
    assert (view.held("main"), view.revision(("main", 7))) == ({7: "b"}, position)
    log.put(claim_key(("main", 7)), b"", 1.0, deleted=True)
    assert (view.held("main"), view.revision(("main", 7))) == ({}, log.position)
    view.forget(("main", 7))
    assert view.revision(("main", 7)) == 0


def test_an_old_message_does_not_undo_what_is_known_to_be_stored() -> None:
    view = View(me="a")
    view.put(Claim(group="main", partition=7, member="a", since=0.0), 10)
    Log(view).claim("b", 7)  # at position 1: from before
    assert view.held("main") == {7: "a"}
    view.released(("main", 7), 11)
    Log(view).claim("b", 7)
    assert view.held("main") == {}


def test_what_nobody_can_read_is_nobodys_claim() -> None:
    view = View(me="a")
    log = Log(view)
    log.claim("b", 7)
    log.put(claim_key(("main", 7)), b"\xff", 1.0)
    log.put(member_key("b"), b"{}", 1.0)
    log.put("some/thing", b"{}", 1.0)
    assert view.held("main") == {}
    assert view.revision(("main", 7)) == log.position - 2


def test_groups_are_apart_and_a_dgd_that_is_planned_alone_is_known_to_all() -> None:
    view = View(me="a")
    log = Log(view)
    log.renew("a", 1.0)
    log.renew("c", 1.0, group="other", alone="ml/llama")
    assert alive(view) == ["a"]
    assert view.alone("main") == {"ml/llama"}
    assert view.alone("other") == set()


def test_who_has_been_silent_for_long_is_forgotten() -> None:
    view = View(me="a")
    log = Log(view)
    log.renew("b", 0.0)
    for at in range(100):
        log.renew("a", float(at))
    assert set(view.members) == {"a"}
