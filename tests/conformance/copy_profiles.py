"""What our copy of the reference makes of a measured profile."""

from collections.abc import Mapping
from typing import Any

from conformance import Case, copies
from reference import engine_of, fpm_of, fpms_of, same

from headrace.models.reference.capacity import Demand, find_capacity
from headrace.models.reference.engine import work_of
from headrace.models.reference.older import OlderDecode, OlderPrefill
from headrace.models.reference.perf import PerfModel

OLDER = {"prefill": OlderPrefill, "decode": OlderDecode}


@copies("03_bootstrap")
def bootstrap(case: Case) -> None:
    """The iterations are those of the file; that our own reader gives the same ones is checked beside this."""
    if "payload" in case.input:
        return
    for half, want in case.expected.items():
        fpms = fpms_of(want["fpms"])
        older = OLDER[half]()
        for fpm in fpms:
            older.learn(fpm)
        assert (older.fit is not None) == want["py_regression"]["fitted"]
        if older.fit is not None:
            coefficients = want["py_regression"]["coef"]
            assert all(same(case, g, w) for g, w in zip(older.fit.slopes, coefficients, strict=True))
            assert same(case, older.fit.intercept, want["py_regression"]["intercept"])
        model = PerfModel(half)
        model.set_limits(engine_of(want["planner_model"]["capabilities"]).limits)
        model.bootstrap(fpms)
        _planner_model(case, model, want["planner_model"])


def _planner_model(case: Case, model: PerfModel, want: Mapping[str, Any]) -> None:
    assert model.ready == want["ready"]
    assert same(case, model.isl.mean, want["avg_isl"])
    assert same(case, model.decode_length.mean, want["avg_decode_length"])
    for row in want["forward_pass_s"]:
        ns = model.times.time_ns(work_of(fpm_of(row["fpm"])))
        assert same(case, None if ns is None else ns / 1e9, row["s"]), row
    sla = want["capacity_sla"]
    for row in want["capacity"]:
        limits = {"ttft_ms": sla["ttft_ms"]} if model.role == "prefill" else {"itl_ms": sla["itl_ms"]}
        got = find_capacity(model, Demand(row["isl"], row["osl"], **limits))
        assert (got is None) == (row["rps"] is None)
        if got is not None:
            assert same(case, got.requests_per_s, row["rps"]), row
            assert got.eligible == row["eligible"]
