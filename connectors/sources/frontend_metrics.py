"""Source: traffic windows from the `/metrics` pages of Dynamo's frontends, scraped directly; no Prometheus between.

Name every frontend process by its own address: behind a load balancer each scrape would show another one's counters.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from headrace.connectors.sources.frontend_page import Reading, Selector, read_page
from headrace.connectors.sources.frontend_windows import FrontendWindows
from headrace.connectors.sources.outbox import Outbox, PublishMany, pause
from headrace.connectors.sources.prom_text import ACCEPT
from headrace.schemas.deadletter import DeadLetter, cut
from headrace.schemas.errors import ConfigError, RecordError

log = logging.getLogger(__name__)

LARGEST_PAGE = 4 * 1024 * 1024  # bytes; a real one has some 80,000
LETTER_EVERY_S = 300.0  # of one frontend with one and the same failure
KEEP_WINDOWS = 2_000  # while the bus is down


@dataclass(frozen=True, slots=True)
class FrontendOptions:
    """The frontends of one DGD. A round of scrapes every `interval_s` seconds, on the clock's grid."""

    dgd: str
    urls: tuple[str, ...]  # of the /metrics pages
    name: str = "frontend"
    selector: Selector = field(default_factory=Selector)
    interval_s: float = 5.0
    timeout_s: float = 4.0  # of one scrape, from connecting to the last byte
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.interval_s:
            raise ConfigError(
                f"source {self.name!r}: timeout_s ({self.timeout_s:g}) must be above 0 and below interval_s "
                f"({self.interval_s:g}), or one round of scrapes would run into the next"
            )
        for url in self.urls:
            if not _is_address(url):
                raise ConfigError(f"source {self.name!r}: {url!r} is no address; write http://host:port/metrics")

    @property
    def frontends(self) -> dict[str, str]:
        """Addresses by what is said of them: without user and password."""
        return {str(httpx.URL(url).copy_with(userinfo=b"")): url for url in self.urls}


@dataclass(slots=True)
class _Complaint:
    """What was last said about a frontend, so that the same is not said every few seconds."""

    reason: str = ""
    at: float = -math.inf


class FrontendSource:
    """Run it with :meth:`run`.

    `transport` replaces httpx's network in tests; `speed` is seconds of `clock` per real one.
    """

    def __init__(
        self,
        options: FrontendOptions,
        publish_many: PublishMany,
        clock: Callable[[], float] = time.time,
        transport: httpx.AsyncBaseTransport | None = None,
        speed: float = 1.0,
    ) -> None:
        self.options = options
        self.windows = FrontendWindows(options.dgd, options.name, list(options.frontends))
        self.outbox = Outbox(publish_many, limit=KEEP_WINDOWS, name=options.name)
        self.failures: dict[str, int] = dict.fromkeys(options.frontends, 0)  # scrapes that told nothing
        self._clock = clock
        self._transport = transport
        self._speed = speed
        self._complaints = {frontend: _Complaint() for frontend in options.frontends}

    async def run(self, stop: asyncio.Event) -> None:
        """Scrape and publish until `stop`."""
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks, self.client() as client:
            tasks.create_task(self.outbox.run(done))
            while not await pause(stop, self._seconds_to_next_round()):
                await self.scrape_once(client)
            done.set()

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers={"accept": ACCEPT, "accept-encoding": "identity", **self.options.headers},
            timeout=self.options.timeout_s,
            transport=self._transport,
            limits=httpx.Limits(max_keepalive_connections=len(self.options.urls)),
        )

    async def scrape_once(self, client: httpx.AsyncClient) -> None:
        """One round: read every frontend at the same time, and queue the window that it completes."""
        at = self._clock()
        frontends = self.options.frontends
        readings = await asyncio.gather(*(self._read(client, name, url, at) for name, url in frontends.items()))
        window = self.windows.round(at, dict(zip(frontends, readings, strict=True)))
        if window is not None:
            self.outbox.put(window)

    async def _read(self, client: httpx.AsyncClient, frontend: str, url: str, at: float) -> Reading | str:
        """A frontend's reading, or why there is none."""
        body = b""
        try:
            async with asyncio.timeout(self.options.timeout_s):
                status, body = await _fetch(client, url)
            if status != httpx.codes.OK:
                raise RecordError(f"HTTP status {status}", reason="undecodable")
            if len(body) > LARGEST_PAGE:
                raise RecordError(f"more than {LARGEST_PAGE} bytes: no frontend writes that", reason="undecodable")
            reading = read_page(body, self.options.selector)
        except RecordError as e:
            self._complain(frontend, str(e), at, body=body, reason=e.reason)
            return str(e)
        except TimeoutError:
            why = f"no whole answer within {self.options.timeout_s:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as e:
            why = f"{type(e).__name__}: {e}"
        else:
            self._complaints[frontend].reason = ""
            return reading
        self._complain(frontend, why, at)
        return why

    def _complain(self, frontend: str, why: str, at: float, *, body: bytes = b"", reason: str = "") -> None:
        """Log a failure, and keep the bytes that could not be used; again only when it changes, or after minutes."""
        self.failures[frontend] += 1
        last = self._complaints[frontend]
        kind = reason or why
        if last.reason == kind and at < last.at + LETTER_EVERY_S:
            return
        last.reason, last.at = kind, at
        log.warning("%s: the traffic of %s is unknown: %s: %s", self.options.name, self.options.dgd, frontend, why)
        if body:
            self.outbox.put(self._letter(frontend, why, at, body, reason))

    def _letter(self, frontend: str, why: str, at: float, body: bytes, reason: str) -> DeadLetter:
        return DeadLetter(
            dgd=self.options.dgd,
            reason=reason,
            message=why,
            reader=self.options.name,
            stream=frontend,
            position=None,
            at=at,
            data=cut(body),
            size=len(body),
        )

    def _seconds_to_next_round(self) -> float:
        now, interval_s = self._clock(), self.options.interval_s
        done = math.floor(now / interval_s + 0.1)  # a timer that fired a little early does not scrape twice
        return ((done + 1) * interval_s - now) / self._speed


def _is_address(url: str) -> bool:
    try:
        return httpx.URL(url).scheme in ("http", "https") and bool(httpx.URL(url).host)
    except httpx.InvalidURL:
        return False


async def _fetch(client: httpx.AsyncClient, url: str) -> tuple[int, bytes]:
    """Status and body; a body that is too long is read a little beyond the limit and no further."""
    async with client.stream("GET", url) as answer:
        parts: list[bytes] = []
        size = 0
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > LARGEST_PAGE:
                break
        return answer.status_code, b"".join(parts)
