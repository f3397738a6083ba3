"""The loads that a sweep asks for, and the profile of its answers."""

from dataclasses import dataclass, replace

import pytest

from headrace.connectors.profiles.sweep import Grid, sweep, sweep_decode, sweep_mixed, sweep_prefill
from headrace.schemas.errors import ConfigError


@dataclass(frozen=True)
class Linear:
    """10 ms + 0.02 ms per prefill token; 5 ms + 0.05 ms per request + 0.1 us per KV token; together, 5 ms less."""

    def prefill_s(self, isl: int) -> float:
        return 0.01 + 2e-5 * isl

    def decode_s(self, requests: int, context_length: int) -> float:
        return 0.005 + 5e-5 * requests + 1e-7 * requests * context_length

    def mixed_s(self, prefill_tokens: int, requests: int, context_length: int) -> float:
        return self.prefill_s(prefill_tokens) + self.decode_s(requests, context_length) - 0.005


# The KV tokens and context length of the reference's own H200 profile, whose points are known.
GRID = Grid(context_length=16_384, max_kv_tokens=945_029)


def test_prompts_rise_evenly_to_512_tokens_below_the_context_length() -> None:
    prompts = list(GRID.prompts())
    assert len(prompts) == 17
    assert prompts[:2] == [100, 100 + (16_384 - 612) // 16]
    assert prompts[-1] < 16_384 - 512


def test_the_decode_loads_are_those_of_the_references_own_profile() -> None:
    loads = list(GRID.decodes())
    assert loads[:7] == [(1 + 262 * i, 350) for i in range(7)]
    assert sorted({context for _, context in loads}) == [350, 2997, 5644, 8291, 10938, 13585]
    assert len(loads) == 41


def test_a_coarser_sweep_has_fewer_points() -> None:
    coarse = replace(GRID, prefill_granularity=4, decode_granularity=3)
    assert len(coarse.prompts()) == 4
    assert len({context for _, context in coarse.decodes()}) == 3


def test_throughput_counts_all_ranks_over_all_gpus_of_a_replica() -> None:
    grid = replace(GRID, gpus=4, ranks=2)
    prefill, decode = sweep_prefill(Linear(), grid), sweep_decode(Linear(), grid)
    assert prefill.throughput_per_gpu[0] == pytest.approx(2 * 100 / 0.012 / 4)
    assert decode.throughput_per_gpu[1] == pytest.approx(2 * 263 / decode.itl_s[1] / 4)


def test_kv_usage_is_of_the_engines_own_cache() -> None:
    decode = sweep_decode(Linear(), GRID)
    assert decode.kv_usage[1] == pytest.approx(0.09740441827711108)  # as in the reference's own profile
    assert max(decode.kv_usage) < 1
    assert decode.max_kv_tokens == 945_029


def test_mixed_iterations_hold_the_prefill_that_keeps_a_load_going() -> None:
    grid = replace(GRID, isl=300, osl=100)
    beside = [
        (w.num_decode_requests, w.sum_prefill_tokens)
        for w in (f.scheduled_requests for f in sweep_mixed(Linear(), grid))
    ]
    assert beside[:6] == [(1, 2), (1, 3), (1, 6), (263, 394), (263, 789), (263, 1578)]


def test_a_mixed_iteration_says_what_it_did_and_how_long_it_took() -> None:
    fpm = sweep_mixed(Linear(), replace(GRID, isl=300, osl=100))[4]
    work = fpm.scheduled_requests
    assert (work.num_prefill_requests, work.sum_decode_kv_tokens) == (3, 263 * 350)
    assert fpm.wall_time == pytest.approx(Linear().mixed_s(789, 263, 350))


def test_no_mixed_iteration_has_more_prefill_than_where_the_line_bends() -> None:
    assert max(f.scheduled_requests.sum_prefill_tokens for f in sweep_mixed(Linear(), GRID)) == 2048


@pytest.mark.parametrize(
    ("prefill", "decode", "mixed"), [(True, False, False), (False, True, False), (True, True, True)]
)
def test_an_engine_is_asked_for_the_work_that_it_does(prefill: bool, decode: bool, mixed: bool) -> None:
    profile = sweep(Linear(), GRID, prefill=prefill, decode=decode)
    assert (profile.prefill is not None, profile.decode is not None, bool(profile.mixed)) == (prefill, decode, mixed)


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        (replace(GRID, context_length=600), "sweep of prefill lengths: fewer than 3 fit between 100 and 88 tokens"),
        (
            replace(GRID, context_length=616),
            "raise sweep_max_context_length or lower prefill_interpolation_granularity",
        ),
        (replace(GRID, prefill_granularity=1), "fewer than 3 fit"),
    ],
)
def test_a_sweep_of_too_few_prompts_is_refused_with_the_remedy(grid: Grid, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        sweep_prefill(Linear(), grid)


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        (replace(GRID, context_length=500), "sweep of decode lengths: fewer than 3 fit between 100 and 0 tokens"),
        (replace(GRID, max_kv_tokens=500), "a KV cache of 500 tokens holds no two requests"),
    ],
)
def test_a_sweep_of_too_few_decode_loads_is_refused_with_the_remedy(grid: Grid, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        sweep_decode(Linear(), grid)
