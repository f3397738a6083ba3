"""Frontends on real sockets: scraping over HTTP, with everything that a socket can do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx
import pytest
from bus_support import eventually, kept, memory_records
from metrics_support import page

from headrace.connectors.bus.records import RecordBus
from headrace.connectors.sources.frontend_metrics import FrontendOptions, FrontendSource
from headrace.schemas.streams import DEADLETTERS, TRAFFIC
from headrace.schemas.traffic import TrafficWindow

DGD = "ml/llama"


class Frontend:
    """A loopback server that answers each request with whatever bytes a test puts here."""

    def __init__(self) -> None:
        self.raw: bytes | None = None  # the whole answer; None: `body` with proper headers
        self.body = page(started=0)
        self.hangs = False
        self.requests = 0
        self._server: asyncio.Server | None = None
        self._release = asyncio.Event()

    async def __aenter__(self) -> "Frontend":
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release.set()
        assert self._server is not None
        self._server.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/metrics"

    def shows(self, started: int) -> None:
        self.raw, self.hangs, self.body = None, False, page(started=started)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /metrics "):
                self.requests += 1
                if self.hangs:
                    await self._release.wait()
                writer.write(self.raw if self.raw is not None else self._proper())
                await writer.drain()
                if self.raw is not None:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    def _proper(self) -> bytes:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(self.body)}\r\n\r\n"
        return head.encode() + self.body


@pytest.fixture
async def records() -> AsyncIterator[RecordBus]:
    records = await memory_records(lambda: 1000.0)
    yield records
    await records.bus.close()


@asynccontextmanager
async def scraping(records: RecordBus, *frontends: Frontend) -> AsyncIterator["Rounds"]:
    rounds = Rounds(records, FrontendOptions(dgd=DGD, urls=tuple(f.url for f in frontends), timeout_s=0.3))
    async with rounds.source.client() as client:
        rounds.client = client
        yield rounds


class Rounds:
    """Scrapes when it is told to, five seconds apart by its own clock."""

    def __init__(self, records: RecordBus, options: FrontendOptions) -> None:
        self.records = records
        self.now = 1000.0
        self.source = FrontendSource(options, records.publish_many, lambda: self.now)
        self.client: httpx.AsyncClient

    async def window(self) -> TrafficWindow | None:
        """One round; the window that it made."""
        await self.source.scrape_once(self.client)
        self.now += 5.0
        done = asyncio.Event()
        done.set()
        await self.source.outbox.run(done)
        found = await kept(self.records, TRAFFIC)
        return found[-1] if found and isinstance(found[-1], TrafficWindow) else None


async def test_arrivals_of_two_frontends_over_http(records: RecordBus) -> None:
    async with Frontend() as a, Frontend() as b, scraping(records, a, b) as rounds:
        await rounds.window()
        a.shows(started=7)
        b.shows(started=5)
        window = await rounds.window()
        assert window is not None
        assert window.requests == 12
        assert (a.requests, b.requests) == (2, 2)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
BROKEN = {
    "no HTTP": b"hello\r\n\r\n",
    "nothing": b"",
    "a body shorter than it says": HEAD + b"content-length: 90000\r\n\r\n" + page(started=13),
    "a body that ends in the middle of a number": HEAD + b"connection: close\r\n\r\n" + page(started=131)[:-4],
    "a broken chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"ffff\r\nshort\r\n",
    "an error": b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\noops",
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000,
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_answer_is_unknown_and_the_next_good_one_counts_all(records: RecordBus, raw: bytes) -> None:
    async with Frontend() as a, scraping(records, a) as rounds:
        a.shows(started=100)
        await rounds.window()
        a.raw = raw
        unknown = await rounds.window()
        a.shows(started=130)
        spanning = await rounds.window()
    assert unknown is not None
    assert spanning is not None
    assert unknown.requests is None
    assert (spanning.start, spanning.end, spanning.requests) == (1000.0, 1010.0, 30)


async def test_a_frontend_that_hangs_does_not_hide_that_the_other_was_read(records: RecordBus) -> None:
    async with Frontend() as a, Frontend() as b, scraping(records, a, b) as rounds:
        await rounds.window()
        a.hangs = True
        b.shows(started=5)
        window = await rounds.window()
        assert window is not None
        assert window.unknown["requests"] == f"{a.url}: no whole answer within 0.3 s"


async def test_a_frontend_that_goes_away_and_comes_back_restarted(records: RecordBus) -> None:
    """What it counted before is known, and what it counts after its restart is counted from zero."""
    async with Frontend() as a, Frontend() as b, scraping(records, a, b) as rounds:
        a.shows(started=10)
        b.shows(started=20)
        await rounds.window()
        b.raw = b""
        gone = await rounds.window()
        b.shows(started=3)
        a.shows(started=14)
        back = await rounds.window()
    assert gone is not None
    assert back is not None
    assert gone.requests is None
    assert back.requests == 4 + 3


async def test_nothing_listens_there(records: RecordBus) -> None:
    async with Frontend() as a:
        url = a.url
    source = FrontendSource(FrontendOptions(dgd=DGD, urls=(url,)), records.publish_many, lambda: 1000.0)
    async with source.client() as client:
        await source.scrape_once(client)
    assert source.failures == {url: 1}
    assert (await records.bus.info(DEADLETTERS)).messages == 0


async def test_the_source_scrapes_on_its_own_until_it_is_stopped(records: RecordBus) -> None:
    async with Frontend() as a:
        options = FrontendOptions(dgd=DGD, urls=(a.url,), interval_s=0.2, timeout_s=0.15)
        source = FrontendSource(options, records.publish_many)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(source.run(stop))
            await eventually(lambda: a.requests >= 4)
            stop.set()
    windows = [record for record in await kept(records, TRAFFIC) if isinstance(record, TrafficWindow)]
    assert len(windows) >= 3
    assert all(before.end == after.start for before, after in pairwise(windows))
