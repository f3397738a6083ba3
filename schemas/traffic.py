"""TrafficWindow: what the frontends saw between two scrapes. Null is unknown and `unknown` says why; zero is zero."""

from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.schemas.base import Amount, Count, Fraction, Name, Record, Seconds


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of one quantity in one window: count, mean, and histogram buckets where the source has them.

    `count` 0 goes with a null mean: the mean of nothing is undefined, which is not an error.
    """

    count: Count
    mean: Amount | None
    bounds: list[Amount] = []  # upper bounds, rising; the last bucket is open
    counts: list[Count] = []  # per bucket, not cumulative: one more than there are bounds

    def __post_init__(self) -> None:
        if (self.bounds or self.counts) and len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.bounds)} bounds need {len(self.bounds) + 1} counts, not {len(self.counts)}")
        if any(low >= high for low, high in pairwise(self.bounds)):
            raise ValueError("bounds must rise")


class TrafficWindow(Record, frozen=True, kw_only=True, tag="headrace.traffic.v1"):
    window_id: Name  # unique per source and window: the identity for exactly-once counting
    source: Name  # who scraped
    start: Seconds  # seconds since 1970, UTC
    end: Seconds  # the event time of the window
    requests: Count | None  # arrivals (requests started), not completions
    isl: Distribution | None = None  # tokens
    osl: Distribution | None = None  # tokens
    ttft_s: Distribution | None = None  # seconds
    itl_s: Distribution | None = None  # seconds
    duration_s: Distribution | None = None  # seconds from arrival to the last token, of requests that ended
    kv_hit_rate: Fraction | None = None  # share of prompt tokens found in a cache
    accept_length: Annotated[float, Meta(ge=1.0, le=1e3)] | None = None  # tokens per decode step
    unknown: dict[str, str] = {}  # field -> why it is null

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"the window ends ({self.end:g}) before it starts ({self.start:g})")
