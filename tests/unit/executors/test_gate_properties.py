"""Whatever the order, number and age of the deliveries: a stale decision never gets through."""

from decision_support import DGD, ack, decision
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.executors.gate import DecisionGate, place
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.decision import Decision

epochs = st.integers(min_value=0, max_value=3)
ids = st.integers(min_value=0, max_value=6)
decisions = st.builds(
    decision,
    ids,
    epochs,
    advisory=st.booleans(),
    expires_at=st.sampled_from([900.0, 1500.0, 2000.0]),
)
acks = st.builds(ack, ids, epochs, status=st.sampled_from(list(AckStatus)))
deliveries = st.lists(st.one_of(decisions, acks, st.floats(min_value=0.0, max_value=400.0)), max_size=40)


def replay(events: list[Decision | DecisionAck | float]) -> list[tuple[Decision, float, list[Decision | DecisionAck]]]:
    """What the gate hands out: the decision, when, and everything that it had been told by then. Floats pass time."""
    gate, now = DecisionGate(DGD), 1000.0
    told: list[Decision | DecisionAck] = []
    handed = []
    for event in events:
        if isinstance(event, float):
            now += event
        else:
            told.append(event)
            if isinstance(event, Decision):
                gate.offer(event)
            else:
                gate.settle(event)
        found = gate.take(now)
        if found is not None:
            handed.append((found, now, list(told)))
    return handed


@given(deliveries)
def test_nothing_older_than_what_was_seen_is_handed_out(events: list[Decision | DecisionAck | float]) -> None:
    for found, _, told in replay(events):
        seen = [place(record) for record in told if isinstance(record, Decision)]
        assert place(found) == max(seen)


@given(deliveries)
def test_what_is_handed_out_only_ever_rises(events: list[Decision | DecisionAck | float]) -> None:
    places = [place(found) for found, _, _ in replay(events)]
    assert places == sorted(set(places))


@given(deliveries)
def test_nothing_advisory_expired_or_settled_is_handed_out(events: list[Decision | DecisionAck | float]) -> None:
    for found, now, told in replay(events):
        settled = [place(record) for record in told if isinstance(record, DecisionAck) and record.status.settles]
        assert not found.advisory
        assert found.expires_at > now
        assert all(place(found) > one for one in settled)


@given(st.lists(st.builds(decision, ids, epochs), min_size=1, max_size=8), st.data())
def test_any_order_and_repetition_ends_at_the_same_newest_decision(given_: list[Decision], data: st.DataObject) -> None:
    order = data.draw(st.permutations(given_ * 2))
    gate = DecisionGate(DGD)
    for one in order:
        gate.offer(one)
    newest = gate.newest
    assert newest is not None
    assert place(newest) == max(map(place, given_))


@given(deliveries)
def test_a_refused_decision_is_never_the_one_that_is_taken(events: list[Decision | DecisionAck | float]) -> None:
    gate, now = DecisionGate(DGD), 1000.0
    for event in events:
        if isinstance(event, Decision):
            gate.offer(event)
        elif isinstance(event, DecisionAck):
            gate.settle(event)
        else:
            now += event
        found = gate.take(now)
        assert found is None or gate.refusal(found, now) is None
