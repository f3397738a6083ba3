"""The worst that engines and frontends can send: on Dynamo's own subjects, and on the pages that are scraped."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
import world
from descendants import needs_proc
from hostile import DGD, MiB, Victim, victim
from metrics_support import page
from nats.aio.client import Client

from headrace.schemas.deadletter import KEPT_BYTES
from headrace.schemas.fpm import TOPIC, FpmEnvelope, encode_envelope, encode_fpm
from headrace.schemas.streams import DEADLETTERS, FPM, TRAFFIC
from headrace.schemas.tick_report import TickReport
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.live import core_client

SUBJECT = f"namespace.dynamo.component.backend.endpoint.generate.{TOPIC}"
SCRAPE_S = 0.5


class Frontend:
    """A frontend whose `/metrics` does what the test says. It counts the requests that its good pages tell."""

    def __init__(self) -> None:
        self.started = 0
        self.served: dict[str, int] = {}
        self.behave: tuple[str, Callable[[Any], None]] = ("good", self.good)
        frontend = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name, act = frontend.behave
                with suppress(OSError):
                    act(self)
                frontend.served[name] = frontend.served.get(name, 0) + 1

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/metrics"

    def good(self, handler: Any) -> None:
        self.started += 7
        n = self.started
        answer(handler, page(started=n, isl=(n, 1000 * n), osl=(n, 100 * n)))

    async def be(self, name: str, act: Callable[[Any], None]) -> None:
        """Behave so until it has been seen once."""
        before = self.served.get(name, 0)
        self.behave = (name, act)
        async with asyncio.timeout(20):
            while self.served.get(name, 0) == before:  # noqa: ASYNC110 - the server is a thread
                await asyncio.sleep(0.02)


def answer(handler: Any, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def never_ending(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b"dynamo_frontend_requests_started_total 1\n" * 1000)


def slow(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b"# still here\n")
        time.sleep(0.05)


def hang_up(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"dynamo_frontend_requests_started_total 1\n")
    handler.connection.shutdown(socket.SHUT_RDWR)


def numbers(text: str) -> bytes:
    return page(started=1).replace(b'request_type="stream"} 1', b'request_type="stream"} ' + text.encode())


# What a page may be -> the reason of its dead letter, None where no byte came that could be kept.
PAGES: dict[str, tuple[Callable[[Any], None], str | None]] = {
    "html": (lambda h: answer(h, b"<html><body>login</body></html>"), "undecodable"),
    "garbage": (lambda h: answer(h, bytes(range(256)) * 40), "undecodable"),
    "empty": (lambda h: answer(h, b""), None),
    "ten_mib": (lambda h: answer(h, b"# x\n" * (10 * MiB // 4)), "undecodable"),
    "never_ending": (never_ending, "undecodable"),
    "slow": (slow, None),
    "error_500": (lambda h: answer(h, b"out of order", 500), "undecodable"),
    "redirect": (lambda h: answer(h, b"there", 302, Location="http://127.0.0.1:9/"), "undecodable"),
    "hang_up": (hang_up, None),
    "nan": (lambda h: answer(h, numbers("NaN")), "not_a_number"),
    "infinity": (lambda h: answer(h, numbers("+Inf")), "not_a_number"),
    "negative": (lambda h: answer(h, numbers("-3")), "not_a_number"),
    "no_number": (lambda h: answer(h, numbers("many")), "undecodable"),
    "other_metrics": (lambda h: answer(h, b"go_goroutines 7\n"), "undecodable"),
    "gzip_that_is_none": (lambda h: answer(h, b"not gzip at all", Content_Encoding="gzip"), None),
}


@pytest.fixture(scope="module")
def frontend() -> Iterator[Frontend]:
    frontend = Frontend()
    yield frontend
    frontend.server.shutdown()
    frontend.server.server_close()


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory, frontend: Frontend) -> Iterator[Victim]:
    sources = {
        "dynamo_fpm": {"namespace": "dynamo"},
        "frontend": {"urls": [frontend.url], "interval_seconds": SCRAPE_S, "timeout_seconds": 0.3},
    }
    folder = tmp_path_factory.mktemp("hostile")
    with victim(folder, server_config=f"max_payload: {16 * MiB}", sources=sources) as planner:
        yield planner


@asynccontextmanager
async def engines(planner: Victim) -> AsyncIterator[Client]:
    """A connection as engines have it."""
    async with planner.bus():
        await planner.report()
        client = await core_client(planner.records)
        yield client
        await client.close()


def envelope(payload: bytes, sequence: int = 1, publisher: int = 7, at: float | None = None, **more: Any) -> bytes:
    fields = {"publisher_id": publisher, "sequence": sequence, "published_at": int(1000 * (at or time.time())),
              "topic": TOPIC, "payload": payload} | more  # fmt: skip
    return encode_envelope(FpmEnvelope(**fields))


def raw(**fields: Any) -> bytes:
    """An envelope of any types."""
    good: dict[str, Any] = {"publisher_id": 7, "sequence": 1, "published_at": 1, "topic": TOPIC, "payload": b""}
    return msgspec.msgpack.encode(good | fields)


async def counted(planner: Victim, name: str, expected: int, before: TickReport) -> TickReport:
    """Wait until a counter has risen by so much; it may not rise by more."""
    async with asyncio.timeout(30):
        while True:
            report = await planner.report()
            gained = report.counters[name] - before.counters[name]
            assert gained <= expected
            if gained == expected:
                return report


BAD_ENVELOPES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "undecodable"),
    "garbage": (b"\xc1 junk", "undecodable"),
    "json": (b'{"publisher_id": 7}', "undecodable"),
    "an_array": (msgspec.msgpack.encode([7, 1, 1, TOPIC, b""]), "undecodable"),
    "without_payload": (msgspec.msgpack.encode({"publisher_id": 7, "sequence": 1, "published_at": 1}), "undecodable"),
    "negative_publisher": (raw(publisher_id=-1), "undecodable"),
    "time_is_nan": (raw(published_at=float("nan")), "undecodable"),
    "time_is_infinite": (raw(published_at=float("inf")), "undecodable"),
    "beyond_all_times": (raw(published_at=2**64 - 1), "undecodable"),
    "payload_is_text": (raw(payload=7), "undecodable"),
    "other_topic": (raw(topic="kv-events"), "wrong_topic"),
    "large_payload": (raw(payload=b"x" * 100_000), "too_large"),
    "ten_mib": (b"\xff" * (10 * MiB), "undecodable"),
}
BAD_FPMS: dict[str, bytes] = {
    "nothing": b"",
    "garbage": b"\xc1",
    "no_worker": encode_fpm(world.fpm("", 1)),
    "version_2": msgspec.msgpack.encode({"version": 2, "worker_id": "1"}),
    "a_float_as_worker": msgspec.msgpack.encode({"worker_id": 1.8e19}),
    "wall_time_is_nan": msgspec.msgpack.encode({"worker_id": "1", "wall_time": float("nan")}),
    "wall_time_is_infinite": msgspec.msgpack.encode({"worker_id": "1", "wall_time": float("inf")}),
    "negative_requests": msgspec.msgpack.encode({"worker_id": "1", "scheduled_requests": {"num_decode_requests": -1}}),
    "absurd_tokens": msgspec.msgpack.encode({"worker_id": "1", "queued_requests": {"sum_prefill_tokens": 2**63}}),
    "a_long_worker_id": encode_fpm(world.fpm("9" * 500, 1)),
}


async def test_every_good_iteration_between_bad_ones_on_dynamos_subject_is_counted(planner: Victim) -> None:
    async with engines(planner) as client:
        before, letters_before = await planner.report(), await planner.end_of(DEADLETTERS)
        bad = [data for data, _ in BAD_ENVELOPES.values()] + [envelope(fpm, 1, 8) for fpm in BAD_FPMS.values()]
        for n, data in enumerate(bad, start=1):
            await client.publish(SUBJECT, envelope(encode_fpm(world.fpm("11", n)), n))
            await client.publish(SUBJECT, data)
        await client.flush()
        report = await counted(planner, "fpm_seen", len(bad), before)
        assert report.counters["fpm_bad"] - before.counters["fpm_bad"] == len(BAD_FPMS)
        letters = await planner.letters(letters_before)
        of_source = [letter for letter in letters if letter.stream == SUBJECT]
        assert {letter.reader for letter in of_source} == {"dynamo-fpm"}
        assert [(letter.data, letter.reason) for letter in of_source] == [
            (data[:KEPT_BYTES], reason) for data, reason in BAD_ENVELOPES.values()
        ]
        of_planner = [letter for letter in letters if letter.stream == FPM.name]
        assert [letter.data for letter in of_planner] == list(BAD_FPMS.values())
        assert all(letter.position and letter.item is not None for letter in of_planner)


async def test_odd_but_possible_iterations_are_taken_for_what_they_are(planner: Victim) -> None:
    highest = 2**64 - 1
    years = 30 * 365 * 86_400.0
    async with engines(planner) as client:
        before = await planner.report()
        good = [envelope(encode_fpm(world.fpm("21", n)), n, 21) for n in range(1, 31)]
        odd = [
            envelope(encode_fpm(world.fpm(str(highest), highest, rank=highest)), highest, highest),
            envelope(encode_fpm(world.fpm("22", 1)), 1, 22, at=time.time() + years),
            envelope(encode_fpm(world.fpm("23", 1)), 1, 23, at=time.time() - years),
        ]
        repeated = [good[3], good[3], good[28], good[2]]
        elsewhere = [("namespace.dynamo.component.encoder.endpoint.generate." + TOPIC, data) for data in good[:5]]
        for subject, data in [*((SUBJECT, d) for d in good[:15] + odd), *elsewhere]:
            await client.publish(subject, data)
        for data in [*good[15:], *repeated]:
            await client.publish(SUBJECT, data)
        await client.flush()
        report = await counted(planner, "fpm_seen", len(good) + len(odd), before)
        assert report.counters["fpm_duplicate"] - before.counters["fpm_duplicate"] == len(repeated)
        assert report.counters["fpm_bad"] == before.counters["fpm_bad"]


def hpub(headers: bytes, data: bytes) -> bytes:
    return b"HPUB %s %d %d\r\n" % (SUBJECT.encode(), len(headers), len(headers) + len(data)) + headers + data + b"\r\n"


async def test_headers_that_are_none_cost_no_iteration(planner: Victim) -> None:
    async with engines(planner):
        before = await planner.report()
        strange = (
            b"NATS/1.0",
            b"\x00\x01junkjunkjunk",
            b"NATS/1.0 \xff\xff\xff\r\n\r\n",
            b"NATS/1.0\r\nA: \xff\r\n\r\n",
        )
        with socket.create_connection(("127.0.0.1", planner.server.port), timeout=5) as s:
            s.recv(4096)
            s.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
            for n in range(1, 41):
                s.sendall(hpub(strange[n % 4], envelope(encode_fpm(world.fpm("31", n)), n, 31)))
            s.sendall(b"PING\r\n")
            assert b"PONG" in s.recv(4096)
        await counted(planner, "fpm_seen", 40, before)


@pytest.mark.slow
@needs_proc
async def test_a_flood_of_made_up_workers_is_bounded_and_the_ticks_go_on(planner: Victim) -> None:
    workers, known = 45_000, 20_000
    async with engines(planner) as client:
        before, rss = await planner.report(), planner.rss_mib
        for n in range(workers):
            await client.publish(SUBJECT, envelope(encode_fpm(world.fpm(str(10**18 + n), 1)), 1, 10**6 + n))
            if n % 500 == 0:
                await client.flush()
                await asyncio.sleep(0.01)
        await client.flush()
        async with asyncio.timeout(60):
            while True:
                report = await planner.report()
                if sum(report.counters[c] - before.counters[c] for c in ("fpm_seen", "fpm_bad")) >= workers:
                    break
        assert report.counters["fpm_bad"] - before.counters["fpm_bad"] >= workers - known
        letters = await planner.letters()
        assert sum(f"more than {known} engine ranks" in letter.message for letter in letters) > 100
        print(f"\n{workers} workers made up: {rss:.0f} MiB before, {planner.rss_mib:.0f} MiB after")
        assert planner.rss_mib - rss < 200


@pytest.mark.slow
async def test_no_page_of_a_frontend_loses_a_request_or_the_planner(planner: Victim, frontend: Frontend) -> None:
    async with planner.bus():
        await planner.report()
        await frontend.be("good", frontend.good)
        letters_before, windows_before = await planner.end_of(DEADLETTERS), await planner.end_of(TRAFFIC)
        first = frontend.started
        for name, (act, _) in PAGES.items():
            await frontend.be(name, act)
            await frontend.be("good", frontend.good)
        await frontend.be("good", frontend.good)
        await asyncio.sleep(2 * SCRAPE_S)
        windows = [w for w in await planner.read(TRAFFIC, windows_before) if isinstance(w, TrafficWindow)]
        known = [w.requests for w in windows if w.requests is not None]
        letters = await planner.letters(letters_before)
    assert set(known) == {7}
    assert 7 * len(known) in range(frontend.started - first - 14, frontend.started - first + 14)
    unknown = [w for w in windows if w.requests is None]
    assert len(unknown) >= len(PAGES)
    assert all(w.unknown["requests"].startswith(frontend.url) for w in unknown)
    kept = [letter.reason for letter in letters if letter.stream == frontend.url]
    assert kept == [reason for _, reason in PAGES.values() if reason is not None]
    listed = planner.cli("deadletters", "list", "--limit", "200")
    assert frontend.url in listed.stdout


def test_the_letters_of_sources_are_listed_shown_and_refused_a_second_time(planner: Victim) -> None:
    rows = planner.cli("deadletters", "list", "--limit", "10000").stdout.splitlines()
    foreign = [row.split("\t") for row in rows if SUBJECT in row or "http://" in row]
    assert foreign
    position = foreign[-1][0]
    shown = planner.cli("deadletters", "show", position, "-o", "hex")
    assert shown.returncode == 0
    assert "reader" in shown.stdout
    result = planner.cli("deadletters", "requeue", position)
    assert result.returncode == 1
    assert "it came from no stream of ours" in result.stdout
    assert DGD in shown.stdout
