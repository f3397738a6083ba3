import statistics

from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.simulator.batch import DecodeBatch, WaitingQueue, variance
from headrace.connectors.simulator.request import Request

lengths = st.lists(st.integers(1, 10_000), min_size=1, max_size=30)


@given(values=lengths)
def test_the_variance_is_the_population_variance(values: list[int]) -> None:
    got = variance(len(values), sum(values), sum(v * v for v in values))
    assert abs(got - statistics.pvariance(values)) <= 1e-9 * max(1.0, got)


def test_the_variance_of_nothing_is_zero() -> None:
    assert variance(0, 0, 0) == 0.0


@given(requests=st.lists(st.tuples(st.integers(1, 500), st.integers(2, 20), st.integers(0, 10)), max_size=20))
def test_the_batch_sums_equal_a_count_by_hand(requests: list[tuple[int, int, int]]) -> None:
    """Each request joins at its own iteration; the contexts are followed one by one beside the sums."""
    batch, contexts = DecodeBatch(), dict[int, list[int]]()
    for iteration in range(40):
        for i, (isl, osl, joins) in enumerate(requests):
            if joins == iteration:
                batch.join(Request(i, 0.0, isl, osl))
                contexts[i] = [isl + 1, isl + osl]
        assert batch.n == len(contexts)
        assert batch.kv == sum(now for now, _ in contexts.values())
        assert batch.kv_squares == sum(now * now for now, _ in contexts.values())
        left = {r.index for r in batch.advance() or ()}
        for context in contexts.values():
            context[0] += 1
        assert left == {i for i, (now, last) in contexts.items() if now == last}
        contexts = {i: context for i, context in contexts.items() if i not in left}
    assert (batch.n, batch.kv, batch.kv_squares) == (0, 0, 0)


@given(isls=lengths)
def test_the_queue_gives_back_in_order_and_its_sums_return_to_zero(isls: list[int]) -> None:
    queue = WaitingQueue()
    for i, isl in enumerate(isls):
        queue.append(Request(i, 0.0, isl, 1))
    assert (len(queue), queue.tokens, queue.squares) == (len(isls), sum(isls), sum(v * v for v in isls))
    assert [queue.popleft().index for _ in isls] == list(range(len(isls)))
    assert (queue.tokens, queue.squares) == (0, 0)
