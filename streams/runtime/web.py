"""The planner's own pages, in a thread of their own: `/metrics`, and `/livez` and `/readyz` for Kubernetes."""

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from headrace.schemas.errors import ConfigError

Page = Callable[[], tuple[int, str, bytes]]  # status, content type, body


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: it would be one line for each scrape."""


def serve_pages(registry: CollectorRegistry, pages: Mapping[str, Page], port: int, address: str) -> None:
    """Serve until the process ends. Raises ConfigError when the port cannot be had."""
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        page = pages.get(environ.get("PATH_INFO", ""))
        if page is None:
            scraped: Iterable[bytes] = metrics(environ, start_response)
            return scraped
        status, kind, body = page()
        start_response(f"{status} {HTTPStatus(status).phrase}", [("Content-Type", kind), ("Cache-Control", "no-store")])
        return [body]

    server = _Server6 if ":" in address else _Server
    try:
        httpd = make_server(address, port, app, server_class=server, handler_class=_Quiet)
    except OSError as e:
        raise ConfigError(
            f"metrics port {port} on {address}: {e}; set PLANNER_PROMETHEUS_PORT to a free one, or 0"
        ) from e
    threading.Thread(target=httpd.serve_forever, daemon=True, name="pages").start()
