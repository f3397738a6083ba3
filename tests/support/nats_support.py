"""NATS servers for tests: started on a free loopback port, stopped by the test that started them."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Self

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


class Proxy:
    """A TCP proxy in front of a server, whose connections a test may cut or make deaf."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.deaf = False  # what the server says does not arrive
        self.refuse = False  # nobody gets through

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """End every connection at once, with what is under way on it."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, to_server}
        for source, sink, is_answer in ((reader, to_server, False), (from_server, writer, True)):
            task = asyncio.create_task(self._pump(source, sink, is_answer))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while data := await source.read(65536):
                if not (is_answer and self.deaf):
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        self._writers.discard(sink)
        sink.transport.abort()
