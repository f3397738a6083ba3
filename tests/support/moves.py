"""Random histories of one deployment, for property tests: what came in, and when the planner ticked."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace
from world import DGD, LIMITS, ack, batch, fpm, prediction, proposal, window

from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.config_revision import ConfigRevision
from headrace.schemas.fpm_batch import FpmBatch
from headrace.schemas.inventory import RoleInventory, WorkerInventory
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal
from headrace.schemas.tick_report import TickReport
from headrace.schemas.traffic import TrafficWindow
from headrace.streams.planner import Planner

BASE = {
    "disagg": {"prefill": "1", "decode": "2"},
    "prefill": {"prefill": "1"},
    "decode": {"decode": "2"},
    "agg": {"agg": "3"},
}


@dataclass(frozen=True)
class Move:
    """Something that happens `after` seconds after the move before it: a tick (`record` None) or a record.

    An ack is about whatever is outstanding when it comes, if anything is.
    """

    after: float
    record: Record | None = None
    ack: str | None = None
    repeat: bool = False


pairs = st.tuples(st.integers(0, 60), st.integers(0, 20_000))
after = st.sampled_from([0.0, 0.5, 2.0])


@st.composite
def fpm_moves(draw: st.DrawFn, roles: list[str]) -> Record:
    role = draw(st.sampled_from(roles))
    workers = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True))
    counter = draw(st.integers(1, 200))
    idle = draw(st.booleans())
    load: dict[str, Any] = {}
    if not idle:
        load = {
            "wall": draw(st.floats(0.0, 0.2)),
            "prefill": draw(pairs) if role != "decode" else (0, 0),
            "decode": draw(pairs) if role != "prefill" else (0, 0),
            "queued_prefill": draw(pairs) if role != "decode" else (0, 0),
            "queued_decode": draw(pairs) if role != "prefill" else (0, 0),
        }
    rank = draw(st.sampled_from([0, 0, 0, 1]))
    fpms = [fpm(str(w), counter + i, rank=rank, **load) for w in workers for i in range(draw(st.integers(1, 6)))]
    return batch(role, 0.0, *fpms)


@st.composite
def inventories(draw: st.DrawFn, roles: list[str]) -> Record:
    seen = {
        role: RoleInventory(
            ready=draw(st.integers(0, 5)),
            starting=draw(st.sampled_from([0, 0, 0, 1, 3])),
            draining=draw(st.sampled_from([0, 0, 1])),
            gpus_per_replica=draw(st.sampled_from([None, 1, 1, 2])),
            capabilities=draw(st.sampled_from([None, LIMITS])),
            workers=draw(st.none() | st.lists(st.sampled_from("12345"), unique=True, max_size=5)),
        )
        for role in draw(st.lists(st.sampled_from(roles), unique=True, max_size=len(roles)))
    }
    return WorkerInventory(dgd=DGD, source="test", observed_at=0.0, roles=seen)


@st.composite
def opinions(draw: st.DrawFn, roles: list[str]) -> Record:
    counts = draw(st.dictionaries(st.sampled_from(roles), st.integers(0, 12), max_size=2))
    kind = draw(st.sampled_from(["SET", "AT_LEAST", "AT_MOST", "REJECT"]))
    return proposal(
        kind, draw(st.sampled_from("ab")), at=0.0, until=draw(st.sampled_from([0.0, 8.0, 40.0])),
        proposal_id=draw(st.sampled_from("pq")), priority=draw(st.integers(0, 30)), **counts,
    )  # fmt: skip


@st.composite
def revisions(draw: st.DrawFn, config: dict[str, Any]) -> Record:
    change = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "ttft_ms": st.sampled_from([50, 100, -1]),
                "min_endpoint": st.integers(0, 3),
                "max_gpu_budget": st.sampled_from([-1, 2, 8]),
                "load_adjustment_interval_seconds": st.sampled_from([1, 2.5, 5, 7]),
                "throughput_adjustment_interval_seconds": st.sampled_from([20, 30]),
                "load_predictor": st.sampled_from(["constant", "kalman", "none"]),
                "capacity_policy": st.sampled_from(["queue_aware", "reference"]),
                "load_min_observations": st.sampled_from([2, 5]),
                "advisory": st.booleans(),
                "on_drift": st.sampled_from(["reissue", "adopt"]),
            },
        )
    )
    return ConfigRevision(dgd=DGD, revision=draw(st.integers(0, 5)), at=0.0, config=config | change)


@st.composite
def windows(draw: st.DrawFn) -> Record:
    requests = draw(st.none() | st.integers(0, 2000))
    rates = {"kv_hit_rate": draw(st.none() | st.floats(0, 1)), "accept_length": draw(st.none() | st.floats(1, 4))}
    isl, osl = draw(st.floats(1, 4000)), draw(st.floats(1, 500))
    return window(0.0, draw(st.sampled_from([2.0, 5.0, 20.0])), requests, isl=isl, osl=osl, **rates)


@st.composite
def predictions(draw: st.DrawFn) -> Record:
    rate = draw(st.none() | st.floats(0, 300))
    return prediction(rate, 0.0, source=draw(st.sampled_from("xy")), priority=draw(st.sampled_from([50, 150])))


CONFIG = {
    "optimization_target": "sla",
    "enable_load_scaling": True,
    "ttft_ms": 100,
    "itl_ms": 10,
    "load_adjustment_interval_seconds": 5,
    "throughput_adjustment_interval_seconds": 20,
    "load_predictor": "constant",
    "ack_timeout_seconds": 25,
    "rejected_retry_seconds": 10,
    "max_gpu_budget": 8,
}


@st.composite
def sane(draw: st.DrawFn, roles: list[str]) -> list[Move]:
    """What a healthy deployment says in a few seconds: all its workers, its inventory, its traffic."""
    moves, seen = [], {}
    for role in roles:
        ready = draw(st.integers(1, 4))
        tokens = draw(st.sampled_from([0, 500, 2500, 6000, 12_000]))
        requests = -(-tokens // 1000)
        load: dict[str, Any] = (
            {"queued_prefill": (requests, tokens)} if role == "prefill" else {"decode": (requests, 5 * tokens)}
        )
        if role == "agg":
            load["queued_prefill"] = (requests, tokens // 2)
        counter = draw(st.integers(1, 500))
        moves.append(
            Move(0.0, batch(role, 0.0, *(fpm(str(w), counter, wall=0.01, **load) for w in range(1, ready + 1))))
        )
        seen[role] = RoleInventory(ready=ready, gpus_per_replica=1, capabilities=LIMITS)
    moves.append(Move(0.0, WorkerInventory(dgd=DGD, source="test", observed_at=0.0, roles=seen)))
    requests = draw(st.sampled_from([0, 20, 500, 3000]))
    return [*moves, Move(0.0, window(0.0, 5.0, requests, isl=1000.0, osl=200.0))]


@st.composite
def histories(draw: st.DrawFn, *, revise: bool = True, rounds: int = 10) -> tuple[dict[str, Any], list[Move]]:
    """A configuration, and moves under it: rounds of what comes in, a tick, and perhaps an ack."""
    config: dict[str, Any] = CONFIG | {
        "mode": draw(st.sampled_from(list(BASE))),
        "min_endpoint": draw(st.integers(0, 2)),
        "max_gpu_budget": draw(st.sampled_from([-1, 4, 8])),
        "min_gpu_budget": draw(st.sampled_from([-1, -1, 3])),
        "capacity_policy": draw(st.sampled_from(["queue_aware", "reference"])),
    }
    roles = list(BASE[config["mode"]])
    records = [fpm_moves(roles), inventories(roles), windows(), predictions(), opinions(roles)]
    if revise:
        records.append(revisions(config))
    odd = st.lists(st.builds(Move, after, st.one_of(records), repeat=st.booleans()), max_size=2)
    acks = st.lists(
        st.builds(
            Move, after, ack=st.sampled_from(["accepted", "applied", "applied", "rejected", "failed", "expired"])
        ),
        max_size=1,
    )
    moves: list[Move] = []
    for _ in range(draw(st.integers(1, rounds))):
        if draw(st.integers(0, 3)):
            moves += draw(sane(roles))
        moves += [*draw(odd), Move(draw(st.sampled_from([5.0, 5.0, 5.0, 1.0, 60.0]))), *draw(acks)]
    return config, moves


def dated(record: Record, at: float, number: int) -> Record:
    """The record as if it had been made at `at`; `number` makes ids unique."""
    match record:
        case FpmBatch():
            items = [replace(item, published_at=at, sequence=number * 100 + i) for i, item in enumerate(record.items)]
            return replace(record, received_at=at, items=items)
        case WorkerInventory():
            return replace(record, observed_at=at)
        case TrafficWindow():
            return replace(record, window_id=f"w{number}", start=at - record.end, end=at)
        case Prediction():
            return replace(record, made_at=at, expires_at=at + 30.0, prediction_id=f"f{number}")
        case Proposal():
            return replace(record, issued_at=at, expires_at=at + record.expires_at)
    return record


@dataclass
class Player:
    """Plays moves on a planner and keeps all that it says."""

    planner: Planner
    now: float = 100.0
    number: int = 0
    repeats: bool = False  # also give every record marked `repeat` a second time

    def play(self, move: Move) -> list[Record]:
        self.now += move.after
        self.number += 1
        if move.ack is not None:
            outstanding = self.planner.ledger.outstanding
            return [] if outstanding is None else self.planner.handle(ack(outstanding, self.now, move.ack), self.now)
        if move.record is None:
            return self.planner.tick(self.now)
        record = dated(move.record, self.now, self.number)
        letters = self.planner.handle(record, self.now)
        if self.repeats and move.repeat:
            self.planner.handle(record, self.now)
        return letters

    def bytes(self, move: Move) -> list[bytes]:
        return [encode(record) for record in self.play(move)]

    def report(self, move: Move) -> TickReport | None:
        said = self.play(move)
        return said[-1] if said and isinstance(said[-1], TickReport) else None
