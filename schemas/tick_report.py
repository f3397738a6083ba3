"""TickReport: everything that one tick saw, and why it did what it did."""

import msgspec

from headrace.schemas.base import Record, Role, Seconds, Serial


class Clamp(msgspec.Struct, frozen=True, kw_only=True):
    """One constraint that moved a count."""

    rule: str  # a Reason
    before: int
    after: int


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """One opinion about one role, as it entered the merge."""

    proposal_id: str
    source: str
    kind: str
    replicas: int | None
    priority: int
    reason: str
    used: bool  # false: expired, outranked, or for an unknown role


class RoleReport(msgspec.Struct, frozen=True, kw_only=True):
    current: int | None  # ready + starting, or null when unknown
    known: dict[str, float] = {}  # what was seen: ready, queued_prefill_tokens, demand_rps, ...
    unknown: dict[str, str] = {}  # what was not, and why
    estimated: dict[str, float] = {}  # ttft_ms, itl_ms, capacity_rps, ...
    proposed: list[Proposed] = []
    floor: int | None = None  # of the throughput loop
    merged: int | None = None
    clamps: list[Clamp] = []
    target: int | None = None  # after the constraints; null = hold, nothing known to decide on
    load_reason: str = "unset"
    throughput_reason: str = "unset"
    reason: str = "unset"  # why the target is what it is


class TickReport(Record, frozen=True, kw_only=True, tag="headrace.tick_report.v1"):
    tick: Serial  # index on the DGD's grid of ticks
    at: Seconds  # the one timestamp of this tick
    due_at: Seconds  # when it was due
    epoch: Serial
    config_revision: Serial
    mode: str
    advisory: bool
    loops: list[str]  # of "load", "throughput": those that were due
    roles: dict[Role, RoleReport]
    load: dict[str, float] = {}  # observed traffic: requests_per_s, isl, osl, ttft_ms, itl_ms, ...
    forecast: dict[str, float] = {}  # requests_per_s, isl, osl, horizon_s, ...
    unknown: dict[str, str] = {}  # inputs of the whole DGD that are unknown, and why
    decision_id: Serial | None = None  # issued by this tick
    outstanding: Serial | None = None  # the decision that is waited for after this tick
    last_outcome: str = ""  # Outcome of the newest decision
    notes: list[str] = []
    counters: dict[str, Serial] = {}  # since the planner's birth: fpm_seen, fpm_duplicate, ...
    positions: dict[str, Serial] = {}  # last position read of each stream, set by the runtime
