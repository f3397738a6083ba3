"""The frontend's statistics: the counters and histograms that Dynamo's frontend keeps, and windows between two looks.

Input length and TTFT are observed at the first token, ITL at each further token, output length and duration at the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.connectors.simulator.histogram import Histogram, Reading
from headrace.connectors.simulator.request import Request
from headrace.schemas.traffic import TrafficWindow

# Dynamo's bucket bounds.
ISL = (0, 100, 210, 430, 870, 1800, 3600, 7400, 15000, 31000, 63000, 130000)
OSL = (0, 100, 210, 430, 880, 1800, 3700, 7600, 16000, 32000)
TTFT = (0, 0.0022, 0.0047, 0.01, 0.022, 0.047, 0.1, 0.22, 0.47, 1, 2.2, 4.7, 10, 22, 48, 100, 220, 480)
ITL = (0, 0.0019, 0.0035, 0.0067, 0.013, 0.024, 0.045, 0.084, 0.16, 0.3, 0.56, 1.1, 2)
DURATION = (0, 2, 4, 8, 16, 32, 64, 130, 260, 510)

NO_ACCEPT_LENGTH = "speculative decoding is not simulated"


@dataclass(frozen=True, slots=True)
class Look:
    """All counters at one moment: what a window is measured from."""

    at: float
    started: int
    isl: Reading
    osl: Reading
    ttft: Reading
    itl: Reading
    cached: Reading
    duration: Reading


class Frontend:
    """Counters since birth. `queued` counts requests before their first token, `inflight` those before their last."""

    __slots__ = (
        "cached", "duration", "errors", "inflight", "isl", "itl", "osl", "output_tokens", "queued", "started",
        "succeeded", "ttft",
    )  # fmt: skip

    def __init__(self) -> None:
        self.started = 0
        self.succeeded = 0
        self.errors = 0  # refused: too long for any worker
        self.output_tokens = 0
        self.inflight = 0
        self.queued = 0
        self.isl = Histogram(ISL)
        self.osl = Histogram(OSL)
        self.ttft = Histogram(TTFT)
        self.itl = Histogram(ITL)
        self.duration = Histogram(DURATION)
        self.cached = Histogram(ISL)

    def arrived(self) -> None:
        self.started += 1
        self.inflight += 1
        self.queued += 1

    def refused(self) -> None:
        self.errors += 1
        self.inflight -= 1
        self.queued -= 1

    def first_token(self, request: Request) -> None:
        self.queued -= 1
        self.output_tokens += 1
        self.isl.observe(request.isl)
        self.cached.observe(0)  # there is no prefix cache, and that is known
        self.ttft.observe(request.first_token_at - request.arrived_at)

    def tokens(self, n: int, wall_s: float, now: float, fresh: Iterable[Request]) -> None:
        """One decode iteration: `n` tokens, each `wall_s` after the request's last, but for the `fresh` requests."""
        self.output_tokens += n
        itl = self.itl
        for request in fresh:
            itl.observe(now - request.first_token_at)
            n -= 1
        itl.observe(wall_s, n)

    def finished(self, request: Request) -> None:
        self.succeeded += 1
        self.inflight -= 1
        self.osl.observe(request.osl)
        self.duration.observe(request.finished_at - request.arrived_at)

    def look(self, now: float) -> Look:
        read = (h.read() for h in (self.isl, self.osl, self.ttft, self.itl, self.cached, self.duration))
        return Look(now, self.started, *read)

    def window(self, before: Look, now: float, dgd: str, origin_s: float) -> TrafficWindow:
        """What happened since a look. Times inside are simulated, those of the record have `origin_s` added."""
        cached, isl = self.cached.sum - before.cached.sum, self.isl.sum - before.isl.sum
        unknown = {"accept_length": NO_ACCEPT_LENGTH}
        if not isl:
            unknown["kv_hit_rate"] = "no prompt was computed in this window"
        return TrafficWindow(
            dgd=dgd,
            window_id=f"simulator-{origin_s + before.at:.6f}-{origin_s + now:.6f}",
            source="simulator",
            start=origin_s + before.at,
            end=origin_s + now,
            requests=self.started - before.started,
            isl=self.isl.since(before.isl),
            osl=self.osl.since(before.osl),
            ttft_s=self.ttft.since(before.ttft),
            itl_s=self.itl.since(before.itl),
            duration_s=self.duration.since(before.duration),
            kv_hit_rate=cached / isl if isl else None,
            unknown=unknown,
        )
