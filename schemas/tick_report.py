"""TickReport: everything that one tick saw, and why it did what it did."""

import msgspec

from headrace.schemas.base import Record, Role, Seconds, Serial
from headrace.schemas.reasons import DecisionReason, OutcomeName


class Clamp(msgspec.Struct, frozen=True, kw_only=True):
    """One constraint that moved a count."""

    rule: DecisionReason
    before: int  # replicas
    after: int  # replicas


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """One opinion about one role, as it entered the merge."""

    proposal_id: str
    source: str
    kind: str  # a ProposalKind
    replicas: int | None  # null: it says nothing about this role
    priority: int
    reason: str
    used: bool  # false: expired, outranked, or for an unknown role


class ReferenceOpinion(msgspec.Struct, frozen=True, kw_only=True):
    """What Dynamo's own planner would have said about one role, on the same telemetry; `shadow_reference` asks it."""

    target: int | None  # replicas that it would have asked for; null: it would have left everything as it is
    floor: int  # replicas that its throughput loop asks for at least
    load_reason: DecisionReason = "unset"  # of its load loop
    throughput_reason: DecisionReason = "unset"  # of its throughput loop
    estimated: dict[str, float] = {}  # ttft_ms, itl_ms, capacity_rps, predicted_requests, ...


class RoleReport(msgspec.Struct, frozen=True, kw_only=True):
    current: int | None  # ready + starting, or null when unknown
    known: dict[str, float] = {}  # what was seen: ready, queued_prefill_tokens, demand_rps, ...
    unknown: dict[str, str] = {}  # what was not, and why
    estimated: dict[str, float] = {}  # ttft_ms, itl_ms, capacity_rps, ...
    proposed: list[Proposed] = []  # every opinion that was heard
    speed_source: str = ""  # where engine speed is mostly known from: "live FPMs", a source of profiles; empty: nowhere
    floor: int | None = None  # replicas that the throughput loop asks for at least
    merged: int | None = None  # replicas after the merge of all proposals
    clamps: list[Clamp] = []  # in the order in which they were applied
    target: int | None = None  # after the constraints; null = hold, nothing known to decide on
    load_reason: DecisionReason = "unset"  # of the load loop
    throughput_reason: DecisionReason = "unset"  # of the throughput loop
    reason: DecisionReason = "unset"  # why the target is what it is
    reference: ReferenceOpinion | None = None  # null: nobody asked it, or it would not have looked now


class TickReport(Record, frozen=True, kw_only=True, tag="headrace.tick_report.v1"):
    tick: Serial  # index on the DGD's grid of ticks
    at: Seconds  # the one timestamp of this tick
    due_at: Seconds  # when it was due
    epoch: Serial  # of the owner
    config_revision: Serial  # in force
    mode: str  # disagg, prefill, decode or agg
    advisory: bool  # true: decisions are for reading only
    loops: list[str]  # of "load", "throughput": those that were due
    roles: dict[Role, RoleReport]  # one for each role of the mode
    load: dict[str, float] = {}  # observed traffic: requests_per_s, isl, osl, ttft_ms, itl_ms, ...
    forecast: dict[str, float] = {}  # requests_per_s, isl, osl, horizon_s, ...
    unknown: dict[str, str] = {}  # inputs of the whole DGD that are unknown, and why
    decision_id: Serial | None = None  # issued by this tick
    outstanding: Serial | None = None  # the decision that is waited for after this tick
    last_outcome: OutcomeName = ""  # of the newest decision; empty before the first
    notes: list[str] = []  # for people
    counters: dict[str, Serial] = {}  # since the planner's birth: fpm_seen, fpm_duplicate, ...
    positions: dict[str, Serial] = {}  # last position read of each stream, set by the runtime
