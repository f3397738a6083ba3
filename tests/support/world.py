"""A small made-up world for planner tests: engines with known speed, records about them, and a stage to play on.

The speeds and limits are those of the golden numbers of the reference (reference-semantics 3.9), models A, B and C.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.models.perf.engine import EngineModel
from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.base import Record
from headrace.schemas.config import planner_config
from headrace.schemas.decision import Decision
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory
from headrace.schemas.prediction import Prediction
from headrace.schemas.proposal import Proposal, ProposalKind
from headrace.schemas.tick_report import RoleReport, TickReport
from headrace.schemas.traffic import Distribution, TrafficWindow
from headrace.streams.planner import Planner

DGD = "ml/llama"
LIMITS = Capabilities(max_num_batched_tokens=2048, max_num_seqs=256, max_kv_tokens=100_000, context_length=8192)

Pair = tuple[int, int]  # requests, tokens
Load = dict[str, Any]  # what `fpm` takes


def prefill_s(tokens: float) -> float:
    """10 ms and 20 us a token: model A."""
    return 0.010 + 0.000_02 * tokens


def decode_s(requests: float, kv_tokens: float) -> float:
    """5 ms, 50 us a request, 0.1 us a KV token: model B."""
    return 0.005 + 0.000_05 * requests + 0.000_000_1 * kv_tokens


def mixed_s(tokens: float, kv_tokens: float) -> float:
    """5 ms, 20 us a prefill token, 0.1 us a KV token: model C."""
    return 0.005 + 0.000_02 * tokens + 0.000_000_1 * kv_tokens


def fpm(
    worker: str,
    counter: int,
    *,
    wall: float = 0.0,
    prefill: Pair = (0, 0),
    decode: Pair = (0, 0),
    queued_prefill: Pair = (0, 0),
    queued_decode: Pair = (0, 0),
    rank: int = 0,
) -> Fpm:
    """An FPM; pairs are (requests, tokens)."""
    return Fpm(
        worker_id=worker,
        dp_rank=rank,
        counter_id=counter,
        wall_time=wall,
        scheduled_requests=ScheduledRequests(
            num_prefill_requests=prefill[0],
            sum_prefill_tokens=prefill[1],
            num_decode_requests=decode[0],
            sum_decode_kv_tokens=decode[1],
        ),
        queued_requests=QueuedRequests(
            num_prefill_requests=queued_prefill[0],
            sum_prefill_tokens=queued_prefill[1],
            num_decode_requests=queued_decode[0],
            sum_decode_kv_tokens=queued_decode[1],
        ),
    )


def batch(role: str, at: float, *fpms: Fpm, publisher: int = 7, dgd: str = DGD) -> FpmBatch:
    items = [FpmItem(at, publisher + int(f.worker_id or 0), f.counter_id, encode_fpm(f)) for f in fpms]
    return FpmBatch(dgd=dgd, role=role, source="test", received_at=at, items=items)


def raw_batch(role: str, at: float, *payloads: bytes) -> FpmBatch:
    items = [FpmItem(at, 7, i, p) for i, p in enumerate(payloads)]
    return FpmBatch(dgd=DGD, role=role, source="test", received_at=at, items=items)


def inventory(at: float, gpus: int | None = 1, starting: dict[str, int] | None = None, **ready: int) -> WorkerInventory:
    roles = {
        role: RoleInventory(ready=n, starting=(starting or {}).get(role, 0), gpus_per_replica=gpus, capabilities=LIMITS)
        for role, n in ready.items()
    }
    return WorkerInventory(dgd=DGD, source="test", observed_at=at, roles=roles)


def window(
    start: float, end: float, requests: int | None, isl: float = 1000.0, osl: float = 200.0, **more: Any
) -> TrafficWindow:
    count = requests or 0
    fields: dict[str, Any] = {
        "isl": Distribution(count=count, mean=isl if count else None),
        "osl": Distribution(count=count, mean=osl if count else None),
    } | more
    if requests is None:
        fields["unknown"] = {"requests": "the scrape failed"}
    return TrafficWindow(
        dgd=DGD, window_id=f"test:{start:g}:{end:g}", source="test", start=start, end=end, requests=requests, **fields
    )


PREFILL_SIZES = (100, 500, 1000, 1500, 2000)  # tokens of one request each: mean 1020
DECODE_LOADS = ((1, 500), (4, 3000), (8, 9000), (16, 15_000), (32, 40_000), (64, 60_000))
MIXED_LOADS = (  # (prefill requests, tokens), (decode requests, KV tokens)
    ((1, 100), (1, 500)),
    ((1, 500), (4, 3000)),
    ((1, 1000), (8, 9000)),
    ((2, 1500), (16, 15_000)),
    ((2, 2000), (32, 40_000)),
    ((1, 300), (64, 60_000)),
)


def taught(role: str) -> EngineModel:
    """An engine's speed as the golden numbers have it."""
    model = EngineModel()
    if role == "prefill":
        sizes = list(PREFILL_SIZES)
        model.learn([1] * 5, sizes, [0] * 5, [0] * 5, [prefill_s(n) for n in sizes])
    elif role == "decode":
        n, kv = zip(*DECODE_LOADS, strict=True)
        model.learn([0] * 6, [0] * 6, n, kv, [decode_s(*load) for load in DECODE_LOADS])
    else:
        (p, t), (n, kv) = (zip(*side, strict=True) for side in zip(*MIXED_LOADS, strict=True))
        model.learn(p, t, n, kv, [mixed_s(a, b) for a, b in zip(t, kv, strict=True)])
    return model


FIRST_PASSES = 3  # of a worker teach nothing


def lesson(role: str, at: float, worker: str, first: int = 1) -> FpmBatch:
    """Enough iterations for an engine's speed to be known as in :func:`taught`, once the first passes are over."""
    if role == "prefill":
        passes = [fpm(worker, 0, wall=prefill_s(n), prefill=(1, n)) for n in PREFILL_SIZES]
    elif role == "decode":
        passes = [fpm(worker, 0, wall=decode_s(*load), decode=load) for load in DECODE_LOADS]
    else:
        passes = [fpm(worker, 0, wall=mixed_s(p[1], d[1]), prefill=p, decode=d) for p, d in MIXED_LOADS]
    warm = [passes[0]] * FIRST_PASSES
    numbered = [
        Fpm(f.version, f.worker_id, f.dp_rank, first + i, f.wall_time, f.scheduled_requests, f.queued_requests)
        for i, f in enumerate([*warm, *passes])
    ]
    return batch(role, at, *numbered)


def prefill_lesson(at: float, worker: str = "1", first: int = 1) -> FpmBatch:
    return lesson("prefill", at, worker, first)


def decode_lesson(at: float, worker: str = "11", first: int = 1) -> FpmBatch:
    return lesson("decode", at, worker, first)


def proposal(kind: str, source: str = "ops", at: float = 0.0, until: float = 1e9, **more: Any) -> Proposal:
    """An outside proposal; targets are given as keywords: ``proposal("SET", decode=3)``."""
    fields = {name: more.pop(name) for name in ("priority", "proposal_id", "reason") if name in more}
    return Proposal(
        dgd=DGD,
        proposal_id=fields.pop("proposal_id", "p"),
        source=source,
        kind=ProposalKind(kind),
        issued_at=at,
        expires_at=until,
        targets=more,
        **fields,
    )


def prediction(rate: float | None, at: float, source: str = "oracle", **more: Any) -> Prediction:
    fields: dict[str, Any] = {"isl": 1000.0, "osl": 200.0, "expires_at": at + 600.0} | more
    return Prediction(
        dgd=DGD, prediction_id=f"{source}:{at:g}", source=source, made_at=at, requests_per_s=rate, **fields
    )


def ack(decision: Decision, at: float, status: str = "applied", **more: Any) -> DecisionAck:
    fields: dict[str, Any] = {"epoch": decision.epoch, "decision_id": decision.decision_id, "executor": "test"} | more
    return DecisionAck(dgd=DGD, status=AckStatus(status), at=at, **fields)


@dataclass(frozen=True)
class Said:
    """What one tick said."""

    records: Sequence[Record]

    @property
    def report(self) -> TickReport:
        report = self.records[-1]
        assert isinstance(report, TickReport)
        return report

    @property
    def decision(self) -> Decision | None:
        return next((r for r in self.records if isinstance(r, Decision)), None)

    @property
    def targets(self) -> dict[str, int] | None:
        return None if self.decision is None else self.decision.targets

    def role(self, role: str) -> RoleReport:
        return self.report.roles[role]


@dataclass
class Stage:
    """A planner, and records for it. Each worker's FPMs are numbered; time is the test's."""

    planner: Planner
    counters: dict[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, **config: Any) -> "Stage":
        """A planner of its own epoch; where not configured, by the reference's policy, for the SLA of the goldens.

        Its forecast is the last value then.
        """
        sla = {"optimization_target": "sla", "ttft_ms": 100, "itl_ms": 10, "max_gpu_budget": -1}
        raw = sla | {"capacity_policy": "reference", "load_predictor": "constant"} | config
        planner = Planner(planner_config(raw), DGD)
        planner.begin_epoch()
        return cls(planner)

    @classmethod
    def load(cls, **config: Any) -> "Stage":
        """Only the load loop runs."""
        return cls.of(**{"enable_load_scaling": True, "enable_throughput_scaling": False} | config)

    @classmethod
    def throughput(cls, **config: Any) -> "Stage":
        """Only the throughput loop runs, on the last value, against the SLA of the goldens of capacity."""
        return cls.of(**{"load_predictor": "constant", "ttft_ms": 500, "itl_ms": 50} | config)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.planner.config.roles

    def give(self, record: Record, at: float) -> list[Record]:
        return self.planner.handle(record, at)

    def teach(self, at: float = 1.0) -> "Stage":
        """Engine speeds of all roles, from workers that are no longer there."""
        for i, role in enumerate(self.roles):
            self.give(lesson(role, at, str(900 + i)), at)
            del self.planner.fpm.ranks[role][str(900 + i), 0]
        return self

    def engines(self, role: str, at: float, *loads: Load, rank: int = 0) -> None:
        """One FPM of each worker of a role: idle for {}, else what `fpm` takes. Workers are 1.., 11.., 21.. by role."""
        base = {"prefill": 1, "decode": 11, "agg": 21}[role]
        for i, load in enumerate(loads):
            key = (str(base + i), rank)
            self.counters[key] = self.counters.get(key, 0) + 1
            self.give(batch(role, at, fpm(key[0], self.counters[key], rank=rank, **load)), at)

    def fleet(self, at: float, gpus: int | None = 1, **counts: int) -> None:
        """The inventory: so many ready workers of each role; ``decode_starting=1`` adds one that starts."""
        starting = {name.removesuffix("_starting"): counts.pop(name) for name in list(counts) if "_starting" in name}
        self.give(inventory(at, gpus, starting, **counts), at)

    def traffic(self, start: float, end: float, requests: int | None, **more: Any) -> None:
        self.give(window(start, end, requests, **more), end)

    def tick(self, at: float | None = None) -> Said:
        """The next tick, at the time it is due if none is given."""
        return Said(self.planner.tick(self.planner.next_tick_at if at is None else at))

    def apply(self, said: Said, at: float, status: str = "applied") -> None:
        assert said.decision is not None
        self.give(ack(said.decision, at, status), at)


def queued(tokens: int) -> Load:
    """A prefill engine with a queue."""
    return {"queued_prefill": (max(1, tokens // 1000), tokens)} if tokens else {}


def held(kv_tokens: int) -> Load:
    """A decode engine with so much KV, a request per 1000 tokens."""
    return {"decode": (-(-kv_tokens // 1000), kv_tokens)} if kv_tokens else {}
