"""The correction-factor planner of 0.4.1, step by step, with its constant predictor."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from conformance import Case, cases, checks, close

from headrace.models.profile.decode import decode_table
from headrace.models.profile.prefill import prefill_table
from headrace.models.scaling.correction import Engines, Factors, Load, Window, correction_verdicts, share_ceiling
from headrace.schemas.base import DECODE, PREFILL, Role
from headrace.schemas.profile import DecodeProfile, PrefillProfile

OVER_BUDGET = "A shared ceiling is kept"


@cache
def tables() -> tuple[Any, Any]:
    """The profile that comes with the reference; every case uses it."""
    (case,) = cases("03_npz_arrays")
    p, d = ({key: array["values"] for key, array in case.expected[half].items()} for half in ("prefill", "decode"))
    prefill = PrefillProfile(
        isl=tuple(map(float, p["prefill_isl"])),
        ttft_s=tuple(ms / 1000 for ms in p["prefill_ttft"]),
        throughput_per_gpu=tuple(p["prefill_thpt_per_gpu"]),
    )
    decode = DecodeProfile(
        kv_usage=tuple(d["x_kv_usage"]),
        context_length=tuple(d["y_context_length"]),
        itl_s=tuple(ms / 1000 for ms in d["z_itl"]),
        throughput_per_gpu=tuple(d["z_thpt_per_gpu"]),
        max_kv_tokens=float(d["max_kv_tokens"][0]),
    )
    return prefill_table(prefill, "reference"), decode_table(decode, "reference")


@checks("04_correction_planner")
def correction(case: Case) -> str | None:
    config = case.input["config"]
    assert case.input["load_predictor"] == "constant"
    prefill, decode = tables()
    gpus: dict[Role, int] = {PREFILL: config["prefill_engine_num_gpu"], DECODE: config["decode_engine_num_gpu"]}
    minimum = {PREFILL: config["min_endpoint"], DECODE: config["min_endpoint"]}
    engines = Engines(prefill, decode, gpus, minimum, config["itl"])
    factors, difference = Factors(), None
    for seen, want in zip(case.input["metrics"], case.expected["steps"], strict=True):
        window = _window(seen, config["adjustment_interval"])
        factors, verdicts = correction_verdicts(
            window, _last(seen, window.seconds), engines, factors, correct=not config["no_correction"]
        )
        rel = case.tolerance["correction_factor"]["rel"]
        assert close(factors.prefill, want["p_correction_factor"], rel=rel)
        assert close(factors.decode, want["d_correction_factor"], rel=rel)
        targets = {role: v.replicas for role, v in verdicts.items() if v.replicas is not None}
        assert bool(targets) == (want["action"] == "scale")
        if targets and _differs(share_ceiling(targets, engines, config["max_gpu_budget"]), want, config, gpus):
            difference = OVER_BUDGET
    return difference


def _window(seen: Mapping[str, Any], seconds: float) -> Window:
    return Window(
        seconds=seconds,
        requests=seen["num_req"],
        isl=seen["isl"],
        osl=seen["osl"],
        ttft_s=seen["ttft"],
        itl_s=seen["itl"],
        request_duration_s=seen["request_duration"],
        decode_workers=seen["num_decode_workers"],
    )


def _last(seen: Mapping[str, Any], seconds: float) -> Load:
    """The forecast of the constant predictor; NaN counts as 0."""
    requests, isl, osl = (0.0 if math.isnan(seen[name]) else seen[name] for name in ("num_req", "isl", "osl"))
    return Load(requests / seconds, isl, osl)


def _differs(
    ours: Mapping[Role, int], want: Mapping[str, Any], config: Mapping[str, Any], gpus: Mapping[Role, int]
) -> bool:
    """Only where the reference is above the ceiling; ours is not."""
    if (ours[PREFILL], ours[DECODE]) == (want["num_p"], want["num_d"]):
        return False
    ceiling = config["max_gpu_budget"]
    assert want["num_p"] * gpus[PREFILL] + want["num_d"] * gpus[DECODE] > ceiling, (ours, want)
    assert sum(n * gpus[role] for role, n in ours.items()) <= ceiling
    return True
