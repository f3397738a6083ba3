"""Processes that a command has started, found by a mark that they inherit in their environment."""

import os
import time
from pathlib import Path

import pytest
from nats_support import is_alive

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


def marked(mark: str) -> dict[int, str]:
    """The processes alive whose environment holds the mark, with their command lines; this one is not meant."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        pid = int(place.name)
        try:
            if pid != os.getpid() and mark.encode() in (place / "environ").read_bytes() and is_alive(pid):
                found[pid] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
    return found


def all_gone(mark: str, patience_s: float = 30.0) -> dict[int, str]:
    """Wait until none is left. What is still there when patience is over."""
    give_up = time.monotonic() + patience_s
    while (left := marked(mark)) and time.monotonic() < give_up:
        time.sleep(0.1)
    return left
