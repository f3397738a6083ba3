"""The processes of the demonstration: started together, watched, and gone when it ends, however it ends."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from headrace.schemas.errors import HeadraceError

GRACE_S = 5.0
LONGEST_LINE = 16 * 1024 * 1024  # bytes; a report names every action


def free_port() -> int:
    """A port on loopback that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Processes:
    """Named child processes; their logs go to files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[str, Process] = {}
        self._talking: set[str] = set()

    async def start(self, name: str, module: str, *arguments: str, talks: bool = False) -> Process:
        """Start a module. With `talks` its stdout is ours to read, and it may end when it has nothing more to say."""
        with self._log(name).open("wb") as log:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.streams.demo.child", module, *arguments),
                stdin=PIPE,  # which ends with us
                stdout=PIPE if talks else log,
                stderr=log,
                limit=LONGEST_LINE,
                start_new_session=True,  # Ctrl-C is ours to pass on, in order
            )
        self._children[name] = child
        if talks:
            self._talking.add(name)
        return child

    def check(self) -> None:
        """Raises HeadraceError, with its last words, when a process has ended by itself."""
        for name, child in self._children.items():
            if child.returncode is None or (child.returncode == 0 and name in self._talking):
                continue
            raise HeadraceError(f"the {name} process ended with status {child.returncode}: {self._last_words(name)}")

    async def stop(self) -> None:
        """End them, politely first. Idempotent."""
        alive = [c for c in self._children.values() if c.returncode is None]
        for child in alive:
            child.terminate()
        for child in alive:
            try:
                async with asyncio.timeout(GRACE_S):
                    await child.wait()
            except TimeoutError:
                os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        self._children.clear()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "it said nothing"
