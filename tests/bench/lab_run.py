"""Run policies and fixed fleets inside Dynamo's own replay simulator: one JSON line a run.

`docs/control-quality.md` tells how; the simulator comes from `pip install ai-dynamo` (1.4.2) in an environment of its
own, which also needs msgspec and numpy, with this repository and `tests/bench` on PYTHONPATH.

    python lab_run.py TRACE.jsonl --sla 300/9 --fleet 3/4 --policy '{"capacity_policy": "queue_aware"}' --startup 60
    python lab_run.py TRACE.jsonl --sla 1000/50 --mode agg --fleet 4
    python lab_run.py TRACE.jsonl --benchmark bench.json      # what engines report, for the planner to start from
"""

import argparse
import importlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("DYN_LOG", "error")

SIMULATOR = importlib.import_module("dynamo._core")  # not among what this repository installs
LabPolicy = importlib.import_module("lab_policy").LabPolicy

TICK_MS = 5000.0
KEPT = 400  # benchmark FPMs of a role


class Silent:
    """A fixed fleet: a policy that never speaks."""

    def __init__(self, tick_ms: float = TICK_MS) -> None:
        self.tick_ms = tick_ms

    def initial_tick_ms(self) -> float:
        return self.tick_ms

    def on_tick(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        return {"target_prefill": None, "target_decode": None, "next_tick_ms": snapshot["now_ms"] + self.tick_ms}


class Recorder(Silent):
    """Keeps the FPMs of iterations that took time, by the slot of the simulator that they came in."""

    def __init__(self) -> None:
        super().__init__(500.0)
        self.seen: dict[str, list[dict[str, Any]]] = {"prefill": [], "decode": []}

    def on_tick(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        for role, kept in self.seen.items():
            kept += [f for f in snapshot[f"{role}_fpm_snapshots"] if f["wall_time"] > 0]
        return super().on_tick(snapshot)

    def sample(self) -> list[list[dict[str, Any]]]:
        chosen = random.Random(0)
        return [chosen.sample(kept, min(KEPT, len(kept))) for kept in self.seen.values()]


class Counted:
    """Counts and times the ticks of a policy, and the ones that ask for another count."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.ticks, self.actions, self.seconds = policy, 0, 0, 0.0

    def initial_tick_ms(self) -> float:
        return float(self.policy.initial_tick_ms())

    def on_tick(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        said: dict[str, Any] = self.policy.on_tick(snapshot)
        self.seconds += time.perf_counter() - began
        self.ticks += 1
        self.actions += any(said[f"target_{role}"] is not None for role in ("prefill", "decode"))
        return said


def engine(kind: str, startup_s: float, caching: bool) -> Any:
    return SIMULATOR.MockEngineArgs(
        engine_type="vllm", block_size=64, num_gpu_blocks=8192, max_num_seqs=256, max_num_batched_tokens=8192,
        worker_type=kind, startup_time=startup_s, enable_prefix_caching=caching,
    )  # fmt: skip


def replay(args: argparse.Namespace, fleet: list[int], policy: Any, sla_ms: tuple[float, float]) -> dict[str, Any]:
    """The simulator's report; one number in `fleet` means aggregated workers."""
    caching, startup_s = args.caching, args.startup
    if len(fleet) == 1:
        workers = {"extra_engine_args": engine("aggregated", startup_s, caching), "num_workers": fleet[0]}
    else:
        workers = {
            "prefill_engine_args": engine("prefill", startup_s, caching), "num_prefill_workers": fleet[0],
            "decode_engine_args": engine("decode", startup_s, False), "num_decode_workers": fleet[1],
        }  # fmt: skip
    return dict(
        SIMULATOR.run_mocker_trace_replay(
            [args.trace], trace_block_size=512, replay_mode="offline", trace_format="mooncake",
            router_mode="kv_router" if caching else "round_robin",
            sla_ttft_ms=sla_ms[0], sla_itl_ms=sla_ms[1], scaling_policy=policy, **workers,
        )
    )  # fmt: skip


def runs(args: argparse.Namespace, sla_ms: tuple[float, float]) -> Iterator[tuple[str, list[int], Any]]:
    """(name, the fleet it begins with, policy) of everything asked for."""
    for fleet in args.fleet:
        yield f"fixed {fleet}", _counts(fleet), Silent()
    prompts = prompts_of(args.trace) if args.policy else []
    for config in args.policy:
        over = {"mode": args.mode, **json.loads(config)}
        yield config, _counts(args.start), LabPolicy.of(*sla_ms, over, args.bench, prompts)


def prompts_of(trace: str) -> list[tuple[float, int]]:
    """Arrival in seconds and length in tokens of every prompt of a trace, in order."""
    with open(trace, encoding="utf-8") as lines:
        rows = map(json.loads, lines)
        return sorted((row["timestamp"] / 1000, row["input_length"]) for row in rows)


def _counts(text: str) -> list[int]:
    return [int(n) for n in text.split("/")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("trace", help="Mooncake JSONL")
    parser.add_argument("--sla", default="300/9", help="TTFT/ITL, ms")
    parser.add_argument("--startup", type=float, default=30.0, help="of a worker, s")
    parser.add_argument("--mode", choices=("disagg", "agg"), default="disagg")
    parser.add_argument("--start", default="2/2", help="the fleet that a policy begins with")
    parser.add_argument("--fleet", action="append", default=[], help="a fixed fleet, as 3/4 or 4")
    parser.add_argument("--policy", action="append", default=[], help="a planner configuration, JSON")
    parser.add_argument("--caching", action="store_true", help="prefix caching, and a router that looks for hits")
    parser.add_argument("--bench", help="benchmark FPMs for the planner to start from, JSON")
    parser.add_argument("--benchmark", help="write benchmark FPMs of one worker a role to this file, and nothing else")
    args = parser.parse_args()
    ttft_ms, itl_ms = (float(n) for n in args.sla.split("/"))
    if args.benchmark:
        recorder = Recorder()
        replay(args, [1] if args.mode == "agg" else [1, 1], recorder, (ttft_ms, itl_ms))
        Path(args.benchmark).write_text(json.dumps(recorder.sample()), encoding="utf-8")
        return
    for name, fleet, policy in runs(args, (ttft_ms, itl_ms)):
        counted = Counted(policy)
        r = replay(args, fleet, counted, (ttft_ms, itl_ms))
        line = {
            "trace": Path(args.trace).stem, "sla": args.sla, "mode": args.mode, "startup_s": args.startup,
            "caching": args.caching,
            "policy": name,
            "goodput": round(r["goodput_completed_requests"] / r["num_requests"], 4),
            "gpu_hours": round(r["gpu_hours"], 3), "actions": counted.actions,
            "ttft_p99_ms": round(r["p99_ttft_ms"]), "itl_p99_ms": round(r["p99_itl_ms"], 1),
            "requests": r["num_requests"], "ms_per_tick": round(1000 * counted.seconds / max(1, counted.ticks), 2),
        }  # fmt: skip
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
