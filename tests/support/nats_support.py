"""NATS servers for tests: started on a free loopback port, stopped by the test that started them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from headrace.connectors.bus.embedded import EmbeddedNats

_prefixes = count(1)


@contextmanager
def nats_server(store: Path, **options: object) -> Iterator[EmbeddedNats]:
    """A server for the length of a block."""
    server = EmbeddedNats(store, **options)  # type: ignore[arg-type]  # handed through
    server.start()
    try:
        yield server
    finally:
        server.stop()


def fresh_prefix() -> str:
    """A bus prefix that no other test on the same server has."""
    return f"test{next(_prefixes)}"


def kill_server(server: EmbeddedNats) -> None:
    """kill -9 of the nats-server itself, and wait until it is gone."""
    os.kill(server.pid, signal.SIGKILL)
    server.stop()


def is_alive(pid: int) -> bool:
    """Does this process exist and run? A zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
