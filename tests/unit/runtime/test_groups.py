"""Parts that run together: how they end, and which error is told."""

import asyncio

import pytest

from headrace.schemas.errors import Fenced
from headrace.streams.runtime.groups import first_error, run_together


async def until(stop: asyncio.Event, log: list[str], name: str) -> None:
    await stop.wait()
    log.append(name)


async def test_a_stop_ends_all_parts() -> None:
    stop, log = asyncio.Event(), list[str]()
    running = asyncio.create_task(run_together([until(stop, log, "a"), until(stop, log, "b")], stop, 10.0))
    await asyncio.sleep(0)
    stop.set()
    await running
    assert sorted(log) == ["a", "b"]


async def test_a_part_that_ends_stops_the_others() -> None:
    stop, log = asyncio.Event(), list[str]()
    await run_together([asyncio.sleep(0), until(stop, log, "other")], stop, 10.0)
    assert log == ["other"]


async def test_the_error_that_began_it_is_raised_as_it_is() -> None:
    async def lose() -> None:
        raise Fenced("another has written")

    stop = asyncio.Event()
    with pytest.raises(Fenced, match="another has written"):
        await run_together([until(stop, [], "other"), lose()], stop, 10.0)
    assert stop.is_set()


async def test_what_does_not_end_in_time_is_cancelled() -> None:
    stop, cancelled = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    stop.set()
    await run_together([hang()], stop, 0.01)
    assert cancelled.is_set()


async def test_cancelling_the_whole_cancels_the_parts() -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(run_together([asyncio.sleep(1000)], stop, 10.0))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_the_first_error_in_nested_groups_is_no_cancellation() -> None:
    error = ValueError("the one")
    inner = BaseExceptionGroup("inner", [asyncio.CancelledError(), error])
    assert first_error(BaseExceptionGroup("outer", [asyncio.CancelledError(), inner])) is error
    alone = BaseExceptionGroup("alone", [asyncio.CancelledError()])
    assert first_error(alone) is alone
