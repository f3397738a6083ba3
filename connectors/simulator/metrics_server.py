"""A small HTTP server for one page, `GET /metrics`: enough for Prometheus and for Headrace's own scraper."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from headrace.connectors.simulator.exposition import CONTENT_TYPE
from headrace.schemas.errors import ConfigError

PATIENCE_S = 5.0  # for a client to send its request
MAX_REQUEST_BYTES = 16 * 1024


class MetricsServer:
    """Serves what `render()` returns at that moment. An async context manager; port 0 picks a free one."""

    def __init__(self, render: Callable[[], str], host: str = "127.0.0.1", port: int = 0) -> None:
        self._render = render
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/metrics"

    async def __aenter__(self) -> "MetricsServer":
        """Listen. Raises ConfigError when the address cannot be had."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=MAX_REQUEST_BYTES)
        except OSError as e:
            raise ConfigError(f"metrics server on {self._host}:{self._port}: {e}; choose a free port") from e
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.split(b"\r\n", 1)[0]))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client's loss; the next one is served
        finally:
            writer.close()

    def _answer(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _response("404 Not Found", "text/plain", b"only /metrics is here\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"use GET\n")
        body = self._render().encode()
        return _response("200 OK", CONTENT_TYPE, body, send_body=method == b"GET")


def _response(status: str, content_type: str, body: bytes, *, send_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if send_body else b"")
