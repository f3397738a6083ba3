"""The demonstration's deployment and planner: small enough for a laptop, busy enough to be worth watching."""

import time
from pathlib import Path
from typing import Any

import yaml

from headrace.connectors.simulator.traces import Trace

DGD = "demo/llama"
START_IN_S = 5.0  # wall seconds for the processes to come up

PLANNER: dict[str, Any] = {
    "mode": "disagg",
    "optimization_target": "sla",
    "enable_throughput_scaling": True,
    "enable_load_scaling": True,
    "ttft_ms": 500,
    "itl_ms": 12,
    "throughput_adjustment_interval_seconds": 60,
    "load_adjustment_interval_seconds": 5,
    "max_gpu_budget": 24,
}
SIMULATOR: dict[str, Any] = {
    "preset": "8b",
    "fleet": {"prefill": 1, "decode": 2},
    "startup_s": 30,
    "load": {
        "shape": "hour",
        "duration_s": 3600,
        "requests_per_s": 3,
        "peak_requests_per_s": 20,
        "isl_mean": 2000,
        "isl_cv": 0.6,
        "osl_mean": 400,
        "osl_cv": 0.5,
    },
}


def speed_for(trace: Trace, seconds: float) -> float:
    """How fast time must run for a trace to take about `seconds`; never slower than real time."""
    return max(1.0, trace.duration_s / seconds)


def patience(speed: float) -> dict[str, Any]:
    """Ages in seconds of a clock that runs `speed` times as fast as the processes and the bus between them."""
    return {
        "fpm_stale_after_seconds": max(10.0, 0.5 * speed),
        "inventory_stale_after_seconds": max(60.0, 3.0 * speed),
        "max_clock_skew_seconds": max(30.0, speed),
    }


def write(folder: Path, raw: dict[str, Any], *, bus: str, metrics_port: int, speed: float) -> Path:
    """The configuration file that all processes of the demonstration share; time begins a little after now."""
    wall_origin = time.time() + START_IN_S
    config = {
        **PLANNER,
        **patience(speed),
        "dgd": DGD,
        "simulator": SIMULATOR,
        **raw,
        "bus": {"url": bus},
        "clock": {"speed": speed, "origin": float(int(wall_origin)), "wall_origin": wall_origin},
        "sources": {
            "dynamo_fpm": {"namespace": "dynamo"},
            "frontend": {
                "urls": [f"http://127.0.0.1:{metrics_port}/metrics"],
                "interval_seconds": min(max(5.0, 0.5 * speed), PLANNER["throughput_adjustment_interval_seconds"] / 3),
                "timeout_seconds": 4.0,
            },
        },
    }
    path = folder / "demo.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path
