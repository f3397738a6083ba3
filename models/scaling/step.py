"""How far one decision may go: one worker fewer in the load loop, a few replicas in the throughput loop."""


def survivors(workers: int, starting: int, min_endpoint: int) -> int | None:
    """How many workers one step down of the load loop leaves; None when there is no step down.

    One fewer than are ready. At the least count, giving up what is still starting is a step too (dynamo#14671).

    >>> survivors(3, 0, 1), survivors(1, 0, 1), survivors(1, 2, 1)
    (2, None, 1)
    """
    least = max(1, min_endpoint)
    if workers > least:
        return workers - 1
    return workers if workers == least and starting else None


def limit_step(current: int, wanted: int, most: int) -> int:
    """`wanted`, but at most `most` replicas away from `current` (dynamo#14296); never past it, never backwards.

    >>> limit_step(2, 30, 8), limit_step(20, 1, 8), limit_step(5, 6, 8)
    (10, 12, 6)
    """
    return max(current - most, min(current + most, wanted))
