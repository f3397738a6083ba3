"""The correction-factor planner, with the numbers of reference-semantics 11.4."""

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.models.profile.decode import decode_table
from headrace.models.profile.prefill import prefill_table
from headrace.models.scaling.correction import (
    Engines,
    Factors,
    Load,
    Window,
    corrected,
    correction_verdicts,
    share_ceiling,
    sized,
)
from headrace.schemas.base import DECODE, PREFILL
from headrace.schemas.profile import DecodeProfile, PrefillProfile
from headrace.schemas.reasons import Reason

T = 180.0


def profiles() -> tuple[PrefillProfile, DecodeProfile]:
    isl = (100.0, 500.0, 1000.0, 2000.0, 4000.0)
    ttft_ms = tuple(20 + 0.05 * x for x in isl)
    loads = list(product((0.05, 0.2, 0.4, 0.6, 0.8, 0.95), (500.0, 1000.0, 2000.0, 4000.0)))
    batch = [max(1.0, u * 1e5 / c) for u, c in loads]
    itl_ms = [5 + 0.05 * b + 20 * u for b, (u, _) in zip(batch, loads, strict=True)]
    prefill = PrefillProfile(
        isl=isl,
        ttft_s=tuple(t / 1000 for t in ttft_ms),
        throughput_per_gpu=tuple(1000 * x / t for x, t in zip(isl, ttft_ms, strict=True)),
    )
    decode = DecodeProfile(
        kv_usage=tuple(u for u, _ in loads),
        context_length=tuple(c for _, c in loads),
        itl_s=tuple(t / 1000 for t in itl_ms),
        throughput_per_gpu=tuple(1000 * b / t for b, t in zip(batch, itl_ms, strict=True)),
        max_kv_tokens=1e5,
    )
    return prefill, decode


PREFILL_PROFILE, DECODE_PROFILE = profiles()
PREFILL_TABLE, DECODE_TABLE = prefill_table(PREFILL_PROFILE, "reference"), decode_table(DECODE_PROFILE, "reference")


def engines(gp: int = 1, gd: int = 1, minimum: int = 1) -> Engines:
    return Engines(
        PREFILL_TABLE,
        DECODE_TABLE,
        gpus={PREFILL: gp, DECODE: gd},
        minimum={PREFILL: minimum, DECODE: minimum},
        itl_sla_s=0.02,
    )


ENGINES = engines()
WINDOW = Window(T, 1800, 1000, 200, ttft_s=0.1, itl_s=0.015, request_duration_s=3, decode_workers=2)


def load(window: Window) -> Load:
    """The last window again."""
    assert window.requests is not None
    assert window.isl is not None
    assert window.osl is not None
    return Load(window.requests / window.seconds, window.isl, window.osl)


def window(requests: float, osl: float, ttft: float, itl: float, duration: float, workers: int) -> Window:
    return Window(T, requests, 1000, osl, ttft, itl, duration, workers)


@pytest.mark.parametrize(
    ("seen", "prefill", "decode", "replicas"),
    [
        (WINDOW, 1.428571, 1.677549, (1, 1)),
        (window(3600, 200, 0.05, 0.015, 3, 2), 0.714286, 1.142630, (1, 2)),
        (window(9000, 400, 0.3, 0.03, 6, 4), 4.285714, 1.136208, (4, 9)),
        (window(20_000, 400, 0.3, 0.03, 6, 4), 4.285714, 1.043478, (8, 19)),
    ],
)
def test_factors_and_replicas_are_the_references(
    seen: Window, prefill: float, decode: float, replicas: tuple[int, int]
) -> None:
    factors, verdicts = correction_verdicts(seen, load(seen), ENGINES, Factors())
    assert factors.prefill == pytest.approx(prefill, rel=1e-6)
    assert factors.decode == pytest.approx(decode, rel=1e-3)
    assert (verdicts[PREFILL].replicas, verdicts[DECODE].replicas) == replicas
    assert {v.reason for v in verdicts.values()} == {Reason.SCALE}


def test_replicas_of_several_gpus_are_fewer() -> None:
    seen = window(9000, 400, 0.3, 0.03, 6, 4)
    _, verdicts = correction_verdicts(seen, load(seen), engines(gp=2, gd=4), Factors())
    assert (verdicts[PREFILL].replicas, verdicts[DECODE].replicas) == (2, 3)


def test_min_endpoint_is_a_floor() -> None:
    _, verdicts = correction_verdicts(WINDOW, load(WINDOW), engines(minimum=3), Factors())
    assert {v.replicas for v in verdicts.values()} == {3}


def test_the_evidence_says_what_was_seen_and_believed() -> None:
    _, verdicts = correction_verdicts(WINDOW, load(WINDOW), ENGINES, Factors())
    assert verdicts[PREFILL].evidence["prefill_correction"] == pytest.approx(1.428571, rel=1e-6)
    assert verdicts[PREFILL].evidence["tokens_per_s"] == pytest.approx(10_000)
    assert verdicts[DECODE].evidence["tokens_per_s"] == pytest.approx(2000)
    factor = verdicts[DECODE].evidence["decode_correction"]
    best = DECODE_TABLE.find_best_throughput_per_gpu(0.02 / factor, 1100)
    assert verdicts[DECODE].evidence["itl_ms"] == pytest.approx(1000 * best.itl_s * factor)
    assert verdicts[DECODE].evidence["itl_ms"] <= 20
    assert verdicts[DECODE].evidence["tokens_per_s_per_gpu"] == best.throughput_per_gpu
    assert verdicts[DECODE].evidence["capacity_meets_sla"] == 1.0
    assert verdicts[PREFILL].evidence["tokens_per_s_per_gpu"] == PREFILL_TABLE.throughput_per_gpu(1000)


@pytest.mark.parametrize("name", ["ttft_s", "itl_s", "isl", "osl"])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_an_unknown_mean_holds_both_roles_and_keeps_the_factors(name: str, value: float | None) -> None:
    before = Factors(0.7, 1.3)
    factors, verdicts = correction_verdicts(replace(WINDOW, **{name: value}), load(WINDOW), ENGINES, before)
    assert factors == before
    assert {(v.replicas, v.reason) for v in verdicts.values()} == {(None, Reason.NO_TRAFFIC_DATA)}


@pytest.mark.parametrize(
    ("unknown", "reason"),
    [
        ({"request_duration_s": None}, Reason.NO_TRAFFIC_DATA),
        ({"request_duration_s": math.nan}, Reason.NO_TRAFFIC_DATA),
        ({"requests": None}, Reason.NO_TRAFFIC_DATA),
        ({"decode_workers": None}, Reason.NO_INVENTORY),
        ({"decode_workers": 0}, Reason.NO_INVENTORY),
    ],
)
def test_without_a_concurrency_only_prefill_is_corrected_and_both_hold(
    unknown: dict[str, float | None], reason: Reason
) -> None:
    factors, missing = corrected(replace(WINDOW, **unknown), ENGINES, Factors(0.7, 1.3))
    assert factors.prefill == pytest.approx(1.428571, rel=1e-6)
    assert factors.decode == 1.3
    assert missing is reason
    _, verdicts = correction_verdicts(replace(WINDOW, **unknown), load(WINDOW), ENGINES, Factors())
    assert {v.replicas for v in verdicts.values()} == {None}


def test_without_a_forecast_both_hold_and_the_factors_are_learned() -> None:
    factors, verdicts = correction_verdicts(WINDOW, None, ENGINES, Factors())
    assert factors.prefill == pytest.approx(1.428571, rel=1e-6)
    assert {(v.replicas, v.reason) for v in verdicts.values()} == {(None, Reason.PREDICT_FAILED)}


def test_without_correction_the_profiles_are_believed_whatever_is_seen() -> None:
    blind = replace(WINDOW, ttft_s=None, itl_s=9.0, decode_workers=0)
    factors, verdicts = correction_verdicts(blind, load(WINDOW), ENGINES, Factors(), correct=False)
    assert factors == Factors()
    assert (verdicts[PREFILL].replicas, verdicts[DECODE].replicas) == (1, 1)


def test_the_planner_is_blind_to_a_queue_in_front_of_prefill() -> None:
    """docs/correction-planner.md: a TTFT of ten times the profile asks for no more prefill than the profile itself."""
    demand = Load(100.0, 1000, 200)
    assert (
        sized(demand, ENGINES, Factors(10.0, 1.0))[PREFILL].replicas
        == sized(demand, ENGINES, Factors())[PREFILL].replicas
    )
    assert sized(demand, ENGINES, Factors(0.5, 1.0))[PREFILL].replicas == 4
    assert sized(demand, ENGINES, Factors())[PREFILL].replicas == 7


def test_an_itl_above_the_profile_asks_for_more_decode() -> None:
    demand = Load(100.0, 1000, 200)
    counts = [sized(demand, ENGINES, Factors(1.0, f))[DECODE].replicas for f in (0.5, 1.0, 1.5, 2.0)]
    assert counts == sorted(counts)
    assert counts[0] != counts[-1]


def test_a_decode_factor_of_zero_leaves_the_target_as_it_is() -> None:
    demand = Load(100.0, 1000, 200)
    assert (
        sized(demand, ENGINES, Factors(1.0, 0.0))[DECODE].replicas == sized(demand, ENGINES, Factors())[DECODE].replicas
    )


def test_before_anything_was_seen_the_profiles_are_believed() -> None:
    assert Factors() == Factors(prefill=1.0, decode=1.0)


def test_engines_that_are_twice_as_fast_as_profiled_may_be_loaded_as_if_the_target_were_twice_as_long() -> None:
    demand = Load(100.0, 1000, 200)
    fast = sized(demand, ENGINES, Factors(decode=0.5))[DECODE]
    lenient = sized(demand, replace(ENGINES, itl_sla_s=2 * ENGINES.itl_sla_s), Factors())[DECODE]
    assert fast.replicas == lenient.replicas
    assert fast.evidence["tokens_per_s_per_gpu"] == lenient.evidence["tokens_per_s_per_gpu"]
    assert fast.evidence["itl_ms"] == pytest.approx(0.5 * lenient.evidence["itl_ms"])


def test_less_than_a_token_a_second_is_a_throughput_and_a_demand_and_none_is_not() -> None:
    slow = SimpleNamespace(throughput_per_gpu=lambda isl: 0.25)
    demand = Load(0.0005, 1000, 200)
    assert sized(demand, replace(ENGINES, prefill=slow), Factors())[PREFILL].replicas == 2  # type: ignore[arg-type]
    nothing = SimpleNamespace(throughput_per_gpu=lambda isl: 0.0)
    found = sized(demand, replace(ENGINES, prefill=nothing), Factors())  # type: ignore[arg-type]
    assert {v.reason for v in found.values()} == {Reason.MODEL_NOT_READY}


def test_a_target_that_no_load_meets_is_marked() -> None:
    verdict = sized(Load(10.0, 1000, 200), replace(ENGINES, itl_sla_s=0.004), Factors())[DECODE]
    assert verdict.evidence["capacity_meets_sla"] == 0.0
    assert verdict.replicas == 3


def test_no_demand_is_the_least_fleet() -> None:
    assert {v.replicas for v in sized(Load(0.0, 1000, 200), ENGINES, Factors()).values()} == {1}


@pytest.mark.parametrize("demand", [Load(math.nan, 1000, 200), Load(math.inf, 1000, 200)])
def test_a_forecast_that_is_no_number_holds(demand: Load) -> None:
    assert {(v.replicas, v.reason) for v in sized(demand, ENGINES, Factors()).values()} == {
        (None, Reason.MODEL_NOT_READY)
    }


@pytest.mark.parametrize(
    ("gpus", "ask", "ceiling", "fitted"),
    [
        ((1, 1), (4, 9), 8, (2, 6)),
        ((1, 1), (8, 19), 8, (2, 6)),
        ((1, 1), (4, 9), 13, (4, 9)),
        ((1, 1), (4, 9), -1, (4, 9)),
        ((1, 1), (4, 9), 0, (1, 1)),
        ((2, 4), (4, 5), 8, (1, 1)),  # the reference takes (1, 2): 10 GPUs
        ((1, 2), (7, 7), 16, (5, 5)),  # the reference takes (5, 6): 17 GPUs
    ],
)
def test_the_ceiling_is_shared_in_proportion_and_wins(
    gpus: tuple[int, int], ask: tuple[int, int], ceiling: int, fitted: tuple[int, int]
) -> None:
    targets = {PREFILL: ask[0], DECODE: ask[1]}
    assert share_ceiling(targets, engines(*gpus), ceiling) == {PREFILL: fitted[0], DECODE: fitted[1]}


@given(
    prefill=st.integers(1, 300),
    decode=st.integers(1, 300),
    gpus=st.tuples(st.integers(1, 16), st.integers(1, 16)),
    ceiling=st.integers(0, 600),
)
def test_no_ceiling_is_exceeded_and_no_role_grows(
    prefill: int, decode: int, gpus: tuple[int, int], ceiling: int
) -> None:
    of = replace(ENGINES, gpus={PREFILL: gpus[0], DECODE: gpus[1]})
    fitted = share_ceiling({PREFILL: prefill, DECODE: decode}, of, ceiling)
    total = fitted[PREFILL] * gpus[0] + fitted[DECODE] * gpus[1]
    assert total <= max(ceiling, sum(gpus))
    assert 1 <= fitted[PREFILL] <= prefill
    assert 1 <= fitted[DECODE] <= decode
