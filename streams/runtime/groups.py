"""Errors of task groups, as the rest of the program expects them: one at a time."""

import asyncio


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that began it: the first that is no cancellation."""
    for e in group.exceptions:
        if isinstance(e, BaseExceptionGroup):
            return first_error(e)
        if not isinstance(e, asyncio.CancelledError):
            return e
    return group
