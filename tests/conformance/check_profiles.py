"""Profiles: what is in the files, what lies between the points, and the iterations that models learn."""

import io
import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from conformance import Case, cases, checks, close

from headrace.connectors.profiles.benchmark import read_benchmark
from headrace.connectors.profiles.files import DECODE_FILES, PREFILL_FILES, read_profile
from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits
from headrace.models.profile.decode import Grid, decode_table
from headrace.models.profile.prefill import prefill_table
from headrace.models.profile.rows import Row, fpm_row, iterations
from headrace.schemas.profile import DecodeProfile, EngineProfile, PrefillProfile

FITTED = "Engine speed is fitted differently"

STEP = 11  # between the cells of a sampled grid


@cache
def given() -> Mapping[str, Mapping[str, Any]]:
    """The arrays of the profile that comes with the reference, by half and key."""
    (case,) = cases("03_npz_arrays")
    return {
        half: {key: array["values"] for key, array in case.expected[half].items()} for half in ("prefill", "decode")
    }


def written(files: Mapping[str, bytes]) -> EngineProfile:
    """What our reader makes of a directory with these files."""
    with tempfile.TemporaryDirectory() as root:
        for name, content in files.items():
            path = Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return read_profile(root)


def npz(arrays: Mapping[str, Any]) -> bytes:
    target = io.BytesIO()
    np.savez(target, **{key: np.array(values) for key, values in arrays.items()})
    return target.getvalue()


def read(arrays: Mapping[str, Any], names: tuple[str, str], *, as_json: bool = False) -> EngineProfile:
    return written({names[1]: json.dumps(arrays).encode()} if as_json else {names[0]: npz(arrays)})


def prefill_of(case: Case) -> PrefillProfile:
    profile = read(case.input.get("arrays") or given()["prefill"], PREFILL_FILES).prefill
    assert profile is not None
    return profile


def decode_of(case: Case) -> DecodeProfile:
    profile = read(case.input.get("arrays") or given()["decode"], DECODE_FILES).decode
    assert profile is not None
    return profile


@checks("03_npz_arrays")
def npz_arrays(case: Case) -> None:
    """Our reader gives back every number of the reference's files."""
    profile = written({names[0]: npz(given()[half]) for half, names in _HALVES.items()})
    p, d = profile.prefill, profile.decode
    assert p is not None
    assert d is not None
    rel = case.tolerance["rel"]
    found = {
        "prefill": {"prefill_isl": p.isl, "prefill_ttft": _ms(p.ttft_s), "prefill_thpt_per_gpu": p.throughput_per_gpu},
        "decode": {
            "x_kv_usage": d.kv_usage,
            "y_context_length": d.context_length,
            "z_itl": _ms(d.itl_s),
            "z_thpt_per_gpu": d.throughput_per_gpu,
            "max_kv_tokens": (d.max_kv_tokens,),
        },
    }
    for half, arrays in case.expected.items():
        assert set(found[half]) == set(arrays)
        for key, array in arrays.items():
            assert len(found[half][key]) == array["shape"][0]
            assert all(close(g, w, rel=rel) for g, w in zip(found[half][key], array["values"], strict=True)), key


@checks("03_interp_prefill")
def interp_prefill(case: Case) -> None:
    table = prefill_table(prefill_of(case), "reference")
    rel, absolute = case.tolerance["rel"], case.tolerance["abs"]
    for row in case.expected["rows"]:
        assert close(table.ttft_s(row["isl"]), row["ttft_s"], rel=rel, absolute=absolute), row
        assert close(table.throughput_per_gpu(row["isl"]), row["thpt_per_gpu"], rel=rel, absolute=absolute), row


@checks("03_interp_decode")
def interp_decode(case: Case) -> None:
    table = decode_table(decode_of(case), "reference")
    assert isinstance(table, Grid)
    rel, absolute = case.tolerance["rel"], case.tolerance["abs"]

    def same(got: float, want: float) -> bool:
        return close(got, want, rel=rel, absolute=absolute)

    sample = case.expected["grid_sample"]
    for name, cells in (("itl_s", table.itl), ("thpt_per_gpu", table.throughput)):
        assert np.allclose(cells[::STEP, ::STEP], np.array(sample[name]), rtol=rel, atol=absolute), name
    for point in case.expected["point"]:
        load = point["concurrency"], point["context_length"]
        assert table.cell(*load) == (point["ix"], point["iy"]), point
        assert same(table.itl_s(*load), point["itl_s"]), point
        assert same(table.throughput_per_gpu(*load), point["thpt_per_gpu"]), point
    for row in case.expected["best"]:
        best = table.find_best_throughput_per_gpu(row["itl_sla_s"], row["context_length"])
        assert same(best.throughput_per_gpu, row["thpt_per_gpu"]), row
        assert same(best.itl_s, row["itl_s"]), row
        assert same(best.kv_usage, row["kv_usage"]), row
        assert best.meets_sla == (best.itl_s <= row["itl_sla_s"])


@checks(
    "03_bootstrap",
    parts=("iterations", "models"),
    asks=lambda case: case.part == "iterations" or "payload" not in case.input,
)
def bootstrap(case: Case) -> str | None:
    """The iterations that models are given, and what the models then predict."""
    if case.part == "models":
        return _models(case)
    if "payload" in case.input:
        found = {
            "prefill": read_benchmark(case.input["payload"], ("prefill",)),
            "decode": read_benchmark(case.input["payload"], ("decode",)),
            "both": read_benchmark(case.input["payload"]),
        }
        for kind, benchmark in found.items():
            assert [fpm_row(fpm) for fpm in benchmark.fpms] == [_row(fpm) for fpm in case.expected[kind]], kind
        return None
    for half, names in _HALVES.items():
        profile = read(case.input.get(half) or given()[half], names, as_json="json" in case.input["files"])
        got = iterations(profile, half).rows
        want = [_row(fpm) for fpm in case.expected[half]["fpms"]]
        assert [row[:4] for row in got] == [row[:4] for row in want], half
        rel = case.tolerance["rel"]
        assert all(close(g[4], w[4], rel=rel) for g, w in zip(got, want, strict=True)), half
    return None


def _models(case: Case) -> str | None:
    """What was measured is noisy, and two fits of it differ by a few per cent."""
    difference = None
    for half, names in _HALVES.items():
        profile = read(case.input.get(half) or given()[half], names, as_json="json" in case.input["files"])
        model = EngineModel()
        model.learn(*iterations(profile, half).columns)
        want = case.expected[half]["planner_model"]
        assert model.ready(Kind(half)) == want["ready"]
        pairs = [(_wall_time(model, row["fpm"]), row["s"]) for row in want["forward_pass_s"]]
        pairs += [(_rate(model, half, row, want), row["rps"]) for row in want["capacity"]]
        for got, theirs in pairs:
            if not close(got, theirs, rel=case.tolerance["rel"]):
                assert close(got, theirs, rel=0.03), (half, got, theirs)
                difference = FITTED
    return difference


def _wall_time(model: EngineModel, fpm: Mapping[str, Any]) -> float | None:
    return model.wall_time_s(
        prefill_tokens=fpm.get("spt", 0), decode_requests=fpm.get("sd", 0), decode_kv_tokens=fpm.get("sdk", 0)
    )


def _rate(model: EngineModel, role: str, row: Mapping[str, Any], want: Mapping[str, Any]) -> float | None:
    cap, sla = want["capabilities"], want["capacity_sla"]
    found = capacity(
        model,
        role,
        EngineLimits(cap["max_num_batched_tokens"], cap["max_num_seqs"], cap["max_kv_tokens"]),
        RequestShape(row["isl"], row["osl"]),
        LatencyTargets(sla["ttft_ms"] / 1000, sla["itl_ms"] / 1000),
    )
    assert found is None or found.meets_sla == row["eligible"]
    return None if found is None else found.requests_per_s


_HALVES = {"prefill": PREFILL_FILES, "decode": DECODE_FILES}


def _ms(seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(1000 * s for s in seconds)


def _row(fpm: Mapping[str, Any]) -> Row:
    return (fpm.get("sp", 0), fpm.get("spt", 0), fpm.get("sd", 0), fpm.get("sdk", 0), fpm["wall_time"])
