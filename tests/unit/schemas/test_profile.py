"""A profile is refused where its numbers cannot be."""

import math

import pytest

from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import DecodeProfile, PrefillProfile

PREFILL = {"isl": (100.0, 200.0), "ttft_s": (0.01, 0.02), "throughput_per_gpu": (0.0, 1.0)}
DECODE = {
    "kv_usage": (0.0, 0.5),
    "context_length": (100.0, 200.0),
    "itl_s": (0.01, 0.02),
    "throughput_per_gpu": (0.0, 1.0),
    "max_kv_tokens": 1.0,
}


def test_good_columns_are_taken_as_they_are() -> None:
    assert PrefillProfile(**PREFILL).ttft_s == (0.01, 0.02)
    assert DecodeProfile(**DECODE).kv_usage == (0.0, 0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("name", ["isl", "ttft_s", "throughput_per_gpu"])
def test_a_number_that_cannot_be_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"prefill profile: {name}\[1\] is {value}, and must be finite and"):
        PrefillProfile(**{**PREFILL, name: (0.5, value)})


@pytest.mark.parametrize("name", ["context_length", "itl_s"])
def test_nothing_takes_no_time_or_has_no_length(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"decode profile: {name}\[0\] is 0.0, and must be finite and above 0"):
        DecodeProfile(**{**DECODE, name: (0.0, 1.0)})


def test_columns_of_different_lengths_are_named_with_their_lengths() -> None:
    with pytest.raises(ConfigError, match="equal length, one row per measured point; got isl 2, ttft_s 1, throughput"):
        PrefillProfile(**{**PREFILL, "ttft_s": (0.1,)})


def test_a_profile_without_points_is_none() -> None:
    with pytest.raises(ConfigError, match="it holds no point"):
        PrefillProfile(isl=(), ttft_s=(), throughput_per_gpu=())


@pytest.mark.parametrize("tokens", [0.0, 0.9, -5.0, math.nan, math.inf])
def test_a_kv_cache_holds_something(tokens: float) -> None:
    with pytest.raises(ConfigError, match="max_kv_tokens is"):
        DecodeProfile(**{**DECODE, "max_kv_tokens": tokens})
