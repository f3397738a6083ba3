"""Profiles as iterations to learn from."""

import pytest

from headrace.models.perf.capacity import LatencyTargets, RequestShape, capacity
from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.latency import EngineLimits, EngineLoad, itl_s, ttft_s
from headrace.models.profile.rows import Row, iterations
from headrace.schemas.base import AGG, DECODE, PREFILL
from headrace.schemas.fpm import Fpm, ScheduledRequests
from headrace.schemas.profile import DecodeProfile, EngineProfile, PrefillProfile

LIMITS = EngineLimits(8192, 256, 100_000)


def prefill(*isl: float) -> PrefillProfile:
    """10 ms + 0.02 ms per token."""
    return PrefillProfile(
        isl=isl, ttft_s=tuple(0.01 + 2e-5 * x for x in isl), throughput_per_gpu=tuple(0.0 for _ in isl)
    )


def decode(*loads: tuple[float, float]) -> DecodeProfile:
    """From (KV usage of 100,000 tokens, context length): 5 ms + 0.05 ms per request + 0.1 us per KV token."""
    times = [0.005 + 5e-5 * max(1, round(u * 1e5 / c)) + 1e-7 * round(u * 1e5) for u, c in loads]
    return DecodeProfile(
        kv_usage=tuple(u for u, _ in loads),
        context_length=tuple(c for _, c in loads),
        itl_s=tuple(times),
        throughput_per_gpu=tuple(0.0 for _ in loads),
        max_kv_tokens=1e5,
    )


def fpm(prompts: int = 0, prompt_tokens: int = 0, decodes: int = 0, kv: int = 0, wall_time: float = 0.01) -> Fpm:
    work = ScheduledRequests(
        num_prefill_requests=prompts,
        sum_prefill_tokens=prompt_tokens,
        num_decode_requests=decodes,
        sum_decode_kv_tokens=kv,
    )
    return Fpm(wall_time=wall_time, scheduled_requests=work)


PROFILE = EngineProfile(
    prefill=prefill(100.0, 500.0, 1000.0, 2000.0, 4000.0, 8000.0),
    decode=decode(*((u, c) for u in (0.05, 0.3, 0.6, 0.9) for c in (500.0, 2000.0, 4000.0))),
)


def test_a_measured_prompt_is_one_request_of_whole_tokens() -> None:
    assert iterations(EngineProfile(prefill=prefill(100.9)), PREFILL).rows == ((1, 100, 0, 0, 0.01 + 2e-5 * 100.9),)


@pytest.mark.parametrize(
    ("usage", "context", "requests", "kv"),
    [
        (0.3, 500.0, 60, 30_000),
        (0.001, 4000.0, 1, 100),  # at least one request
        (0.000025, 1.0, 2, 2),  # 2.5 tokens: halves to even
        (0.05, 2000.0, 2, 5000),  # 2.5 requests, likewise
    ],
)
def test_a_measured_decode_load_is_rounded_as_the_reference_does(
    usage: float, context: float, requests: int, kv: int
) -> None:
    (row,) = iterations(EngineProfile(decode=decode((usage, context))), DECODE).rows
    assert row[:4] == (0, 0, requests, kv)


def test_each_role_is_given_its_own_kind_of_work() -> None:
    def kinds(rows: tuple[Row, ...]) -> set[tuple[bool, bool]]:
        return {(row[0] > 0, row[2] > 0) for row in rows}

    assert kinds(iterations(PROFILE, PREFILL).rows) == {(True, False)}
    assert kinds(iterations(PROFILE, DECODE).rows) == {(False, True)}
    assert kinds(iterations(PROFILE, AGG).rows) == {(True, False), (False, True)}
    assert iterations(PROFILE, "encode").rows == ()


def test_a_model_that_learned_a_profile_predicts_what_was_measured() -> None:
    for role, kind, load in ((PREFILL, Kind.PREFILL, {"prefill_tokens": 3000}), (DECODE, Kind.DECODE, {})):
        model = EngineModel()
        model.learn(*iterations(PROFILE, role).columns)
        assert model.ready(kind)
        at = load or {"decode_requests": 15, "decode_kv_tokens": 30_000}
        assert model.wall_time_s(**at) == pytest.approx(0.07 if load else 0.005 + 15 * 5e-5 + 0.003, rel=1e-6)


def test_an_aggregated_engine_has_latencies_and_a_capacity_from_a_profile_alone() -> None:
    """Weak spot 2: the reference gives it decode iterations only, and its capacity stays None."""
    model = EngineModel()
    model.learn(*iterations(PROFILE, AGG).columns)
    found = capacity(model, AGG, LIMITS, RequestShape(1000, 200), LatencyTargets(0.5, 0.05))
    assert found is not None
    assert found.meets_sla
    busy = EngineLoad(queued_prefill_tokens=3000, scheduled_decode_requests=10, scheduled_decode_kv_tokens=10_000)
    assert ttft_s(model, AGG, busy, LIMITS) is not None
    assert ttft_s(model, AGG, EngineLoad(queued_prefill_tokens=3000), LIMITS) is not None
    assert itl_s(model, AGG, busy) is not None


def test_a_decode_only_profile_gives_an_aggregated_engine_no_capacity() -> None:
    model = EngineModel()
    model.learn(*iterations(EngineProfile(decode=PROFILE.decode), AGG).columns)
    assert capacity(model, AGG, LIMITS, RequestShape(1000, 200), LatencyTargets(0.5, 0.05)) is None


def test_measured_mixed_iterations_are_learned_as_such() -> None:
    mixed = tuple(fpm(1, p, n, 1000 * n, 0.005 + 2e-5 * p + 1e-7 * 1000 * n) for p in (100, 500, 900) for n in (1, 8))
    profile = EngineProfile(prefill=PROFILE.prefill, decode=PROFILE.decode, mixed=mixed)
    model = EngineModel()
    model.learn(*iterations(profile, AGG).columns)
    assert model.samples(Kind.MIXED) == 6
    seen = model.wall_time_s(prefill_tokens=700, decode_requests=4, decode_kv_tokens=4000)
    assert seen == pytest.approx(0.005 + 0.014 + 0.0004, rel=1e-6)
    assert {row[2] for row in iterations(profile, PREFILL).rows} == {0}


def test_a_benchmarks_iterations_go_to_the_roles_that_do_them() -> None:
    fpms = (fpm(1, 512), fpm(decodes=4, kv=4000), fpm(2, 300, 8, 8000), fpm(), fpm(decodes=1, kv=10, wall_time=0.0))
    profile = EngineProfile(fpms=fpms)
    assert iterations(profile, PREFILL).rows == ((1, 512, 0, 0, 0.01),)
    assert iterations(profile, DECODE).rows == ((0, 0, 4, 4000, 0.01),)
    assert iterations(profile, AGG).rows == ((1, 512, 0, 0, 0.01), (0, 0, 4, 4000, 0.01), (2, 300, 8, 8000, 0.01))
