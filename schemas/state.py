"""PlannerState: a planner's snapshot with the stream positions it covers. A cache of the log, never the truth."""

from headrace.schemas.base import Record, Seconds, Serial


class PlannerState(Record, frozen=True, kw_only=True, tag="headrace.state.v1"):
    epoch: Serial  # of the owner that took it
    taken_at: Seconds  # seconds since 1970, UTC
    positions: dict[str, Serial]  # stream -> last position included
    crc32: Serial  # of `state`
    state: bytes  # Planner.snapshot(), compressed with zlib, base64 in JSON; empty: it was too large for the bus
