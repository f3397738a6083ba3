"""Headrace's planner inside Dynamo's own replay simulator: the adapter that `docs/control-quality.md` tells how to run.

The simulator calls `on_tick(snapshot)` with the latest FPM of every worker, the counts and the traffic since the last
tick, and takes targets. Environment: HEADRACE_LAB_CONFIG, a JSON object over the configuration below;
HEADRACE_LAB_BENCH, a file of benchmark FPMs (prefill, decode) for the planner to start from.

The simulator tells means alone. A frontend also has a histogram of prompt lengths: a driver that hands the trace's
`prompts` over gets one made from those that have come.
"""

import json
import os
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from headrace.schemas.ack import AckStatus, DecisionAck
from headrace.schemas.config import planner_config
from headrace.schemas.decision import Decision
from headrace.schemas.fpm import Fpm, QueuedRequests, ScheduledRequests, encode_fpm
from headrace.schemas.fpm_batch import FpmBatch, FpmItem
from headrace.schemas.inventory import Capabilities, RoleInventory, WorkerInventory
from headrace.schemas.traffic import Distribution, TrafficWindow
from headrace.streams.planner import Planner

DGD = "lab/dynamo"
SLOTS = {"disagg": {"prefill": "prefill", "decode": "decode"}, "agg": {"agg": "decode"}}  # role -> of the simulator
LIMITS = Capabilities(max_num_batched_tokens=8192, max_num_seqs=256, max_kv_tokens=8192 * 64, context_length=131_072)
DEFAULTS: dict[str, Any] = {
    "optimization_target": "sla",
    "enable_throughput_scaling": True,
    "enable_load_scaling": True,
    "throughput_adjustment_interval_seconds": 60,
    "load_adjustment_interval_seconds": 5,
    "max_gpu_budget": 64,
    "prefill_engine_num_gpu": 1,
    "decode_engine_num_gpu": 1,
    "load_predictor": "kalman",
}
ISL = (0, 100, 210, 430, 870, 1800, 3600, 7400, 15000, 31000, 63000, 130000)  # bounds of a frontend's buckets, tokens

QUEUED = {
    "num_prefill_requests": "num_queued_prefill",
    "sum_prefill_tokens": "sum_queued_prefill_tokens",
    "var_prefill_length": "var_queued_prefill_length",
    "num_decode_requests": "num_queued_decode",
    "sum_decode_kv_tokens": "sum_queued_decode_kv_tokens",
    "var_decode_kv_tokens": "var_queued_decode_kv_tokens",
}


def fpm_of(flat: dict[str, Any]) -> Fpm:
    """An FPM from the simulator's flat keys. Raises KeyError when one is missing."""
    return Fpm(
        worker_id=str(flat["worker_id"]),
        dp_rank=int(flat["dp_rank"]),
        wall_time=float(flat["wall_time"]),
        scheduled_requests=ScheduledRequests(**{name: flat[name] for name in ScheduledRequests.__struct_fields__}),
        queued_requests=QueuedRequests(**{name: flat[key] for name, key in QUEUED.items()}),
    )


Prompts = Sequence[tuple[float, int]]  # arrival, seconds, and tokens; in order


class LabPolicy:
    """The simulator's policy protocol around a Planner; decisions are acked when the counts are there."""

    def __init__(self, config: dict[str, Any], prompts: Prompts = ()) -> None:
        self.prompts = prompts
        self.planner = Planner(planner_config(config), DGD, start=0.0)
        self.planner.begin_epoch()
        self.slots = SLOTS[self.planner.config.mode]
        self._counter = 0
        self._outstanding: Decision | None = None
        self._window_from = 0.0

    @classmethod
    def of(
        cls, ttft_ms: float, itl_ms: float, over: dict[str, Any], bench: str | None, prompts: Prompts = ()
    ) -> "LabPolicy":
        """Against this SLA, with `over` upon DEFAULTS; `bench` is a file of benchmark FPMs."""
        policy = cls({**DEFAULTS, "ttft_ms": ttft_ms, "itl_ms": itl_ms, **over}, prompts)
        if bench:
            with open(bench) as file:
                policy.learn(json.load(file))
        return policy

    def learn(self, bench: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
        """Benchmark FPMs, as the reference gets them."""
        of_slot = dict(zip(("prefill", "decode"), bench, strict=True))
        for role, slot in self.slots.items():
            flats = of_slot[slot]
            fpms = [fpm_of(f) for f in flats]
            work = [f.scheduled_requests for f in fpms]
            self.planner.models[role].learn(
                [s.num_prefill_requests for s in work],
                [s.sum_prefill_tokens for s in work],
                [s.num_decode_requests for s in work],
                [s.sum_decode_kv_tokens for s in work],
                [f.wall_time for f in fpms],
            )

    def initial_tick_ms(self) -> float:
        return 1000 * self.planner.next_tick_at

    def on_tick(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        now = snapshot["now_ms"] / 1000
        self._counter += 1
        for role, slot in self.slots.items():
            self._feed_fpms(role, snapshot[f"{slot}_fpm_snapshots"], now)
        self._feed_counts(snapshot, now)
        self._feed_traffic(snapshot.get("traffic") or {}, now)
        self._ack(snapshot, now)
        targets: dict[str, int | None] = {"prefill": None, "decode": None}
        for record in self.planner.tick(now):
            if isinstance(record, Decision):
                self._outstanding = record
                targets |= {self.slots[r]: n for r, n in record.targets.items() if n != record.previous[r]}
        return {
            "target_prefill": targets["prefill"],
            "target_decode": targets["decode"],
            "next_tick_ms": 1000 * self.planner.next_tick_at,
        }

    def _feed_fpms(self, role: str, flats: list[dict[str, Any]], now: float) -> None:
        items = []
        for flat in flats:
            one = fpm_of(flat)
            # The simulator has no counter: a snapshot is a new message.
            numbered = Fpm(one.version, one.worker_id, one.dp_rank, self._counter, one.wall_time,
                           one.scheduled_requests, one.queued_requests)  # fmt: skip
            items.append(FpmItem(now, int(one.worker_id) + 1, self._counter, encode_fpm(numbered)))
        if items:
            batch = FpmBatch(dgd=DGD, role=role, source="lab", received_at=now, items=items)
            self.planner.handle(batch, now)

    def _feed_counts(self, s: dict[str, Any], now: float) -> None:
        roles = {
            role: RoleInventory(
                ready=s[f"active_{slot}_count"],
                starting=s[f"starting_{slot}_count"],
                draining=s[f"draining_{slot}_count"],
                gpus_per_replica=1,
                capabilities=LIMITS,
            )
            for role, slot in self.slots.items()
        }
        inventory = WorkerInventory(dgd=DGD, source="lab", observed_at=now, roles=roles)
        self.planner.handle(inventory, now)

    def _feed_traffic(self, t: dict[str, Any], now: float) -> None:
        n, seconds = int(t.get("num_req") or 0), float(t.get("duration_s") or 0.0)
        if seconds <= 0:
            return
        start, self._window_from = self._window_from, now

        def mean(name: str, scale: float = 1.0) -> Distribution:
            value = t.get(name)
            known = value is not None and value > 0
            return Distribution(count=max(1, n) if known else 0, mean=value * scale if known else None)

        window = TrafficWindow(
            dgd=DGD,
            window_id=f"lab:{now:.3f}",
            source="lab",
            start=start,
            end=now,
            requests=n,
            isl=self._prompts(start, now) or mean("avg_isl"),
            osl=mean("avg_osl"),
            ttft_s=mean("avg_ttft_ms", 0.001),
            itl_s=mean("avg_itl_ms", 0.001),
            kv_hit_rate=t.get("avg_kv_hit_rate") if t.get("hit_rate_count") else None,
        )
        self.planner.handle(window, now)

    def _prompts(self, start: float, end: float) -> Distribution | None:
        """What a frontend's histogram shows of the prompts that have come in this window."""
        came = self.prompts[bisect_left(self.prompts, (start, 0)) : bisect_left(self.prompts, (end, 0))]
        if not came:
            return None
        counts = [0] * (len(ISL) + 1)
        for _, tokens in came:
            counts[bisect_left(ISL, tokens)] += 1
        mean = sum(tokens for _, tokens in came) / len(came)
        return Distribution(count=len(came), mean=mean, bounds=list(ISL), counts=counts)

    def _ack(self, s: dict[str, Any], now: float) -> None:
        d = self._outstanding
        if d is None:
            return
        active = {r: s[f"active_{self.slots[r]}_count"] for r in d.targets}
        draining = {r: s[f"draining_{self.slots[r]}_count"] for r in d.targets}
        if active == d.targets and not any(draining.values()):
            ack = DecisionAck(dgd=DGD, epoch=d.epoch, decision_id=d.decision_id, status=AckStatus.APPLIED,
                              executor="lab", at=now, counts=active)  # fmt: skip
            self.planner.handle(ack, now)
            self._outstanding = None


def make_policy(ttft_ms: float, itl_ms: float) -> LabPolicy:
    """The policy under this SLA, for a driver that knows nothing of Headrace."""
    over = json.loads(os.environ.get("HEADRACE_LAB_CONFIG", "{}"))
    return LabPolicy.of(ttft_ms, itl_ms, over, os.environ.get("HEADRACE_LAB_BENCH"))
