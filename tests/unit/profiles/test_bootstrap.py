"""The first source that knows an engine beforehand."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.connectors.profiles.bootstrap import Source, first_available
from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import Fpm, ScheduledRequests
from headrace.schemas.profile import DecodeProfile, EngineProfile, PrefillProfile


def prefill(points: int = 3) -> PrefillProfile:
    some = tuple(float(i + 1) for i in range(points))
    return PrefillProfile(isl=some, ttft_s=some, throughput_per_gpu=some)


def decode(points: int = 3) -> DecodeProfile:
    some = tuple(float(i + 1) for i in range(points))
    return DecodeProfile(kv_usage=some, context_length=some, itl_s=some, throughput_per_gpu=some, max_kv_tokens=9.0)


def fpms(prefills: int, decodes: int) -> EngineProfile:
    work = [ScheduledRequests(num_prefill_requests=1, sum_prefill_tokens=9)] * prefills
    work += [ScheduledRequests(num_decode_requests=1, sum_decode_kv_tokens=9)] * decodes
    return EngineProfile(fpms=tuple(Fpm(wall_time=1.0, scheduled_requests=w) for w in work))


BOTH = EngineProfile(prefill=prefill(), decode=decode())


def gives(profile: EngineProfile) -> Callable[[], EngineProfile]:
    return lambda: profile


def refuses(why: str) -> Callable[[], EngineProfile]:
    def read() -> EngineProfile:
        raise ConfigError(why)

    return read


def never() -> EngineProfile:
    raise AssertionError("a source after the first that has something is not asked")


def test_the_engines_own_benchmark_comes_first() -> None:
    readers = {Source.FILES: never, Source.AIC: never, Source.BENCHMARK: gives(BOTH)}
    found = first_available("decode", readers)
    assert found.source is Source.BENCHMARK
    assert found.profile is BOTH
    assert found.not_used == {Source.AIC: "get_perf_metrics came first", Source.FILES: "get_perf_metrics came first"}


def test_a_source_that_has_nothing_says_why_and_the_next_is_asked() -> None:
    readers = {Source.BENCHMARK: refuses("no answer"), Source.AIC: gives(fpms(0, 2)), Source.FILES: gives(BOTH)}
    found = first_available("decode", readers)
    assert found.source is Source.FILES
    assert found.not_used == {
        Source.BENCHMARK: "no answer",
        Source.AIC: "2 decode points, and at least 3 are needed",
    }
    assert found.note == (
        "decode speed from profile_results_dir (get_perf_metrics: no answer; "
        "aic_interpolation: 2 decode points, and at least 3 are needed)"
    )


def test_with_no_source_left_speed_comes_from_live_fpms() -> None:
    found = first_available("prefill", {Source.FILES: refuses("no such directory")})
    assert found.source is Source.LIVE
    assert found.profile == EngineProfile()
    assert found.not_used == {
        Source.BENCHMARK: "not configured",
        Source.AIC: "not configured",
        Source.FILES: "no such directory",
    }


@pytest.mark.parametrize(
    ("role", "profile", "lacks"),
    [
        ("prefill", EngineProfile(decode=decode()), "0 prefill points"),
        ("prefill", EngineProfile(prefill=prefill(2)), "2 prefill points"),
        ("decode", EngineProfile(prefill=prefill()), "0 decode points"),
        ("decode", EngineProfile(decode=decode(2)), "2 decode points"),
        ("agg", EngineProfile(decode=decode()), "0 prefill points"),
        ("agg", EngineProfile(prefill=prefill()), "0 decode points"),
        ("agg", fpms(2, 1), "2 prefill points and 1 decode points"),
        ("encode", BOTH, "0 encode points"),
    ],
)
def test_a_source_that_does_not_cover_the_work_of_a_role_is_passed_over(role: str, profile: Any, lacks: str) -> None:
    found = first_available(role, {Source.AIC: gives(profile)})
    assert found.source is Source.LIVE
    assert found.not_used[Source.AIC].startswith(lacks)


@pytest.mark.parametrize(
    ("role", "profile"),
    [
        ("prefill", fpms(3, 0)),
        ("decode", EngineProfile(decode=decode())),
        ("agg", fpms(3, 3)),
        ("agg", EngineProfile(prefill=prefill(), fpms=fpms(0, 3).fpms)),
    ],
)
def test_a_source_with_three_points_of_each_work_is_taken(role: str, profile: EngineProfile) -> None:
    assert first_available(role, {Source.BENCHMARK: gives(profile)}).source is Source.BENCHMARK


def test_an_error_that_is_no_refusal_is_not_hidden() -> None:
    with pytest.raises(AssertionError):
        first_available("decode", {Source.AIC: never})
