"""One command in a process group of its own: its exit code, the ends of its output, and its end when time is over."""

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import Process
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
    """The reading end of a pipe, of which the last bytes are kept.

    The pipe is our own: asyncio's `Process.wait` would wait until the last child has closed it.
    """

    def __init__(self) -> None:
        self._reading_end, self.writing_end = os.pipe()
        self._kept = b""
        self._transport: asyncio.ReadTransport | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to read; the writing end is the command's alone from here on."""
        os.close(self.writing_end)
        reader = asyncio.StreamReader()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._reading_end, "rb", buffering=0)
        )
        self._task = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while part := await reader.read(KEPT_OUTPUT):
            self._kept = (self._kept + part)[-KEPT_OUTPUT:]

    async def finish(self, timeout_s: float) -> str:
        """What came until the pipe was closed, or until the time was over."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)
        return self._kept.decode(errors="replace")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.close()
        else:
            os.close(self.writing_end)
            os.close(self._reading_end)


async def run(
    argv: Sequence[str], *, stdin: bytes, env: Mapping[str, str], timeout_s: float, stop: asyncio.Event
) -> Finished:
    """Run a command until it exits. When `timeout_s` has passed or `stop` is set before, its whole group is ended.

    `env` is added to our own environment. Raises OSError when the command cannot be started.
    """
    out, err = _Tail(), _Tail()
    process: Process | None = None
    try:
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=given,
                stdout=out.writing_end,
                stderr=err.writing_end,
                env={**os.environ, **env},
                start_new_session=True,
            )
        await out.start()
        await err.start()
        exited = await _exits(process, timeout_s, stop)
        if not exited:
            await _end(process)
        stdout, stderr = await out.finish(_LINGER_S), await err.finish(_LINGER_S)
        return Finished(process.returncode if exited else None, stdout, stderr, not exited and not stop.is_set())
    finally:
        if process is not None and process.returncode is None:
            _signal(process, signal.SIGKILL)
        out.close()
        err.close()


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
