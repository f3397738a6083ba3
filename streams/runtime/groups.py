"""Tasks that live and end together, and their errors as the rest of the program expects them: one at a time."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


async def run_together(parts: Sequence[Coroutine[Any, Any, None]], stop: asyncio.Event, grace_s: float) -> None:
    """Run until `stop` is set; when one part ends, for whatever reason, the others are stopped too.

    What has not ended `grace_s` seconds after that is cancelled. Raises the error that began it.
    """

    async def run(part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        finally:
            stop.set()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(part)) for part in parts]
            await stop.wait()
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
    except BaseExceptionGroup as e:
        raise first_error(e) from e


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group that is no cancellation."""
    for e in group.exceptions:
        if isinstance(e, BaseExceptionGroup):
            return first_error(e)
        if not isinstance(e, asyncio.CancelledError):
            return e
    return group
