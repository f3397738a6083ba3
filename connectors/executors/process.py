"""One command in a process group of its own: its exit code, the ends of its output, and its end when time is over."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

KEPT_OUTPUT = 64 * 1024  # bytes of stdout and of stderr, the last ones
_GRACE_S = 5.0  # between SIGTERM and SIGKILL
_LINGER_S = 1.0  # for output that comes after the exit: a child of the command may hold the pipe open for ever


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended. `code` is negative for a signal, and None when we ended it: `timed_out` tells why."""

    code: int | None
    stdout: str
    stderr: str
    timed_out: bool = False

    @property
    def last_error_line(self) -> str:
        """The last line on stderr that says anything."""
        return next((line.strip() for line in reversed(self.stderr.splitlines()) if line.strip()), "")


class _Tail:
    """Reads a pipe to its end and keeps the last bytes."""

    def __init__(self, pipe: asyncio.StreamReader | None) -> None:
        assert pipe is not None
        self._kept = b""
        self.task = asyncio.create_task(self._read(pipe))

    async def _read(self, pipe: asyncio.StreamReader) -> None:
        while part := await pipe.read(KEPT_OUTPUT):
            self._kept = (self._kept + part)[-KEPT_OUTPUT:]

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")


async def run(
    argv: Sequence[str], *, stdin: bytes, env: Mapping[str, str], timeout_s: float, stop: asyncio.Event
) -> Finished:
    """Run a command until it exits. When `timeout_s` has passed or `stop` is set before, its whole group is ended.

    `env` is added to our own environment. Raises OSError when the command cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={**os.environ, **env}, start_new_session=True
    )
    tails = _Tail(process.stdout), _Tail(process.stderr)
    feeding = asyncio.create_task(_feed(process.stdin, stdin))
    try:
        timed_out = not await _exits(process, timeout_s, stop)
        ended_by_us = process.returncode is None
        if ended_by_us:
            await _end(process)
        await asyncio.wait([tail.task for tail in tails], timeout=_LINGER_S)
        code = None if ended_by_us else process.returncode
        return Finished(code, tails[0].text, tails[1].text, timed_out and not stop.is_set())
    finally:
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
        for task in (feeding, *(tail.task for tail in tails)):
            task.cancel()


async def _feed(pipe: asyncio.StreamWriter | None, data: bytes) -> None:
    assert pipe is not None
    try:
        pipe.write(data)
        await pipe.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # a command need not read it
    finally:
        pipe.close()


async def _exits(process: Process, timeout_s: float, stop: asyncio.Event) -> bool:
    """Wait for the exit; false when the time is over or `stop` is set before."""
    waiting = [asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    return process.returncode is not None


async def _end(process: Process) -> None:
    """SIGTERM to the group, and SIGKILL to what is left of it."""
    _signal(process, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # all gone, or only zombies left (macOS)
        os.killpg(process.pid, number)  # the group's id is its first process's
