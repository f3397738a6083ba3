"""Scraping: every way in which a frontend can answer badly, and that the source lives."""

import asyncio
import gzip
import logging
import time
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from bus_support import eventually, kept, memory_records
from metrics_support import page

from headrace.connectors.bus.records import RecordBus
from headrace.connectors.sources.frontend_metrics import LARGEST_PAGE, FrontendOptions, FrontendSource
from headrace.connectors.sources.frontend_page import Selector
from headrace.schemas.deadletter import KEPT_BYTES, DeadLetter
from headrace.schemas.errors import ConfigError
from headrace.schemas.streams import DEADLETTERS, TRAFFIC
from headrace.schemas.traffic import TrafficWindow

DGD = "ml/llama"
A, B = "http://a:8000/metrics", "http://b:8000/metrics"
Answer = Callable[[httpx.Request], httpx.Response]


class Frontends:
    """Answers by host; an answer is bytes, a response, or an error to raise."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers[request.url.host]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            raise AssertionError("nobody sets it")
        if isinstance(answer, httpx.Response):
            return answer
        assert isinstance(answer, bytes)
        return httpx.Response(200, content=answer)


class World:
    """A source over a bus in memory, a clock that stands, and frontends of our own."""

    def __init__(self, records: RecordBus, *urls: str, timeout_s: float = 4.0) -> None:
        self.now = 1000.0
        self.records = records
        self.frontends = Frontends(a=page(started=0), b=page(started=0))
        options = FrontendOptions(dgd=DGD, urls=urls or (A,), timeout_s=timeout_s)
        transport = httpx.MockTransport(self.frontends)
        self.source = FrontendSource(options, records.publish_many, lambda: self.now, transport)

    async def scrape(self, **answers: object) -> None:
        """One round, five seconds after the one before."""
        self.frontends.answers.update(answers)
        async with self.source.client() as client:
            await self.source.scrape_once(client)
        self.now += 5.0

    async def published(self) -> tuple[list[TrafficWindow], list[DeadLetter]]:
        done = asyncio.Event()
        done.set()
        await self.source.outbox.run(done)
        windows = [w for w in await kept(self.records, TRAFFIC) if isinstance(w, TrafficWindow)]
        letters = [d for d in await kept(self.records, DEADLETTERS) if isinstance(d, DeadLetter)]
        return windows, letters


@pytest.fixture
async def records() -> AsyncIterator[RecordBus]:
    records = await memory_records(lambda: 1000.0)
    yield records
    await records.bus.close()


async def test_two_rounds_make_a_window_on_the_traffic_stream(records: RecordBus) -> None:
    world = World(records, A, B)
    await world.scrape(a=page(started=100), b=page(started=7))
    await world.scrape(a=page(started=103), b=page(started=9))
    [window], letters = await world.published()
    assert (window.dgd, window.source, window.start, window.end, window.requests) == (
        DGD,
        "frontend",
        1000.0,
        1005.0,
        5,
    )
    assert letters == []


async def test_frontends_are_asked_for_plain_text(records: RecordBus) -> None:
    world = World(records)
    await world.scrape()
    [request] = world.frontends.requests
    assert request.headers["accept"].startswith("text/plain;version=0.0.4")
    assert request.headers["accept-encoding"] == "identity"


BAD_ANSWERS = {
    "an error body": httpx.Response(500, content=b"internal error"),
    "a proxy's page": httpx.Response(200, content=b"<html><body>please log in</body></html>\n"),
    "garbage": httpx.Response(200, content=bytes(range(256)) * 10),
    "not found": httpx.Response(404, content=page(started=9)),
    "a redirect with a body": httpx.Response(302, content=b"moved", headers={"location": "http://a:8000/login"}),
    "a cut page": httpx.Response(200, content=page(started=131)[:-3]),
    "too much": httpx.Response(200, content=b"# " + b"x" * (10 * 1024 * 1024)),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_bad_answer_is_a_dead_letter_and_an_unknown_window(records: RecordBus, answer: httpx.Response) -> None:
    world = World(records)
    await world.scrape(a=page(started=1))
    await world.scrape(a=answer)
    await world.scrape(a=page(started=8))
    (unknown, spanning), [letter] = await world.published()
    assert unknown.requests is None
    assert A in unknown.unknown["requests"]
    assert (spanning.start, spanning.requests) == (1000.0, 7)
    assert (letter.reason, letter.stream, letter.reader, letter.dgd) == ("undecodable", A, "frontend", DGD)
    assert len(letter.data) <= KEPT_BYTES
    assert letter.at == 1005.0


async def test_no_more_of_a_body_is_read_than_can_be_a_page(records: RecordBus) -> None:
    world = World(records)
    await world.scrape()
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1 << 20
            yield b"x" * (1 << 20)

    await world.scrape(a=httpx.Response(200, content=endless()))
    _, [letter] = await world.published()
    assert str(LARGEST_PAGE) in letter.message
    assert read <= LARGEST_PAGE + (2 << 20)


SILENT = {
    "refused": httpx.ConnectError("connection refused"),
    "reset": httpx.ReadError("connection reset"),
    "slow": httpx.ReadTimeout("timed out"),
    "not HTTP": httpx.RemoteProtocolError("illegal status line"),
    "empty": httpx.Response(503),
}


@pytest.mark.parametrize("answer", SILENT.values(), ids=SILENT.keys())
async def test_no_answer_is_an_unknown_window_without_a_dead_letter(records: RecordBus, answer: object) -> None:
    world = World(records)
    await world.scrape()
    await world.scrape(a=answer)
    [window], letters = await world.published()
    assert window.requests is None
    assert letters == []


async def test_a_frontend_that_never_ends_its_answer_costs_one_timeout(records: RecordBus) -> None:
    world = World(records, A, B, timeout_s=0.05)
    await world.scrape()
    await world.scrape(a=asyncio.Event())
    [window], _ = await world.published()
    assert window.unknown["requests"] == f"{A}: no whole answer within 0.05 s"


async def test_the_same_failure_is_kept_once_and_a_new_one_again(records: RecordBus) -> None:
    world = World(records)
    for _ in range(5):
        await world.scrape(a=b"<html></html>\n")
    await world.scrape(a=page(started="NaN"))
    await world.scrape(a=b"<html></html>\n")
    windows, letters = await world.published()
    assert [letter.reason for letter in letters] == ["undecodable", "not_a_number", "undecodable"]
    assert len(windows) == 6
    assert world.source.failures[A] == 7


async def test_a_failure_that_lasts_is_kept_again_after_minutes(records: RecordBus) -> None:
    world = World(records)
    for _ in range(2):
        await world.scrape(a=b"<html></html>\n")
        world.now += 400.0
    _, letters = await world.published()
    assert len(letters) == 2


async def test_a_compressed_answer_that_lies_is_unknown(records: RecordBus) -> None:
    world = World(records)
    await world.scrape()
    await world.scrape(a=httpx.Response(200, stream=httpx.ByteStream(b"no gzip"), headers={"content-encoding": "gzip"}))
    [window], _ = await world.published()
    assert "DecodingError" in window.unknown["requests"]


async def test_a_compressed_answer_is_read(records: RecordBus) -> None:
    world = World(records)
    await world.scrape()
    body = httpx.ByteStream(gzip.compress(page(started=4)))
    await world.scrape(a=httpx.Response(200, stream=body, headers={"content-encoding": "gzip"}))
    [window], _ = await world.published()
    assert window.requests == 4


async def test_passwords_in_addresses_are_not_repeated(records: RecordBus, caplog: pytest.LogCaptureFixture) -> None:
    world = World(records, "http://user:secret@a:8000/metrics")
    with caplog.at_level(logging.DEBUG, "headrace"):
        await world.scrape(a=b"<html></html>\n")
        await world.scrape(a=b"<html></html>\n")
    [window], [letter] = await world.published()
    assert "secret" not in str(window) + str(letter) + caplog.text
    assert world.frontends.requests[0].headers["authorization"].startswith("Basic")


async def test_rounds_fall_on_the_grid_of_the_interval(records: RecordBus) -> None:
    world = World(records)
    waits = []
    for now in (1000.0, 1001.5, 1004.99, 1004.4):
        world.now = now
        waits.append(now + world.source._seconds_to_next_round())
    assert waits == [1005.0, 1005.0, 1010.0, 1005.0]  # a timer that fired 10 ms early does not scrape twice


async def test_the_source_runs_until_it_is_stopped(records: RecordBus) -> None:
    frontends = Frontends(a=page(started=1))
    options = FrontendOptions(dgd=DGD, urls=(A,))
    fast = FrontendSource(
        options, records.publish_many, lambda: 100 * time.monotonic(), httpx.MockTransport(frontends), speed=100.0
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fast.run(stop))
        await eventually(lambda: len(frontends.requests) >= 3)
        stop.set()
    assert len(await kept(records, TRAFFIC)) == len(frontends.requests) - 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"timeout_s": 5.0}, "below interval_s"),
        ({"timeout_s": 0.0}, "above 0"),
        ({"urls": ("a:8000/metrics",)}, "http://host:port/metrics"),
        ({"urls": ("",)}, "no address"),
    ],
)
def test_options_that_cannot_be_right_are_refused(options: dict[str, object], word: str) -> None:
    given: dict[str, object] = {"dgd": DGD, "urls": (A,), **options}
    with pytest.raises(ConfigError, match=word):
        FrontendOptions(**given)  # type: ignore[arg-type]


async def test_the_model_is_chosen_by_the_selector(records: RecordBus) -> None:
    options = FrontendOptions(dgd=DGD, urls=(A,), selector=Selector(model="LLAMA"))
    frontends = Frontends(a=page(model="llama", started=1) + page(model="qwen", started=50))
    source = FrontendSource(options, records.publish_many, lambda: now, httpx.MockTransport(frontends))
    async with source.client() as client:
        now = 10.0
        await source.scrape_once(client)
        frontends.answers["a"] = page(model="llama", started=3) + page(model="qwen", started=90)
        now = 15.0
        await source.scrape_once(client)
    done = asyncio.Event()
    done.set()
    await source.outbox.run(done)
    [window] = await kept(records, TRAFFIC)
    assert isinstance(window, TrafficWindow)
    assert window.requests == 2
