"""The planner as its own process, for tests that end it."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path


async def start_planner(config: Path, log: Path) -> Process:
    """`headrace run` on a configuration; what it says goes to the log."""
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace", "run", "-c", str(config), stdin=DEVNULL, stdout=out, stderr=out
        )
