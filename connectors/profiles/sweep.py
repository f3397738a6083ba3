"""Which loads to ask a performance estimator for, and the profile that its answers make.

The grids are the reference's (reference-semantics 3.8, item 2): prompts of 100 tokens up to the context length, and
decode loads of evenly rising requests for evenly rising prompts with 500 tokens of output.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import Fpm, ScheduledRequests
from headrace.schemas.profile import DecodeProfile, EngineProfile, PrefillProfile

SHORTEST = 100  # tokens
MARGIN = 512  # tokens below the context length where prompts end
OUTPUT = 500  # tokens of each request in the decode sweep
SHARES = (0.5, 1.0, 2.0)  # of the prefill that keeps a decode load going, beside which the mixed sweep puts it
MOST_PREFILL = 2048  # tokens in one mixed iteration: beyond it prefill bends, and a line fitted to all fits none
FEWEST = 3  # points that make a profile


class Estimator(Protocol):
    """Seconds that one engine rank takes; the parallel ranks of one replica all do the same at once."""

    def prefill_s(self, isl: int) -> float:
        """One prompt of `isl` tokens, alone."""
        ...

    def decode_s(self, requests: int, context_length: int) -> float:
        """One iteration with so many requests of `context_length` tokens each."""
        ...

    def mixed_s(self, prefill_tokens: int, requests: int, context_length: int) -> float:
        """One iteration that computes `prefill_tokens` of a prompt beside such a decode load."""
        ...


@dataclass(frozen=True, slots=True)
class Grid:
    """How far the sweep goes. `max_kv_tokens` is of one rank; `gpus` and `ranks` are of one replica.

    `isl` and `osl`, the lengths of expected requests, say how much prefill goes with a decode load.
    """

    context_length: int
    max_kv_tokens: int
    gpus: int = 1
    ranks: int = 1
    isl: int = 3000
    osl: int = 150
    prefill_granularity: int = 16
    decode_granularity: int = 6

    def prompts(self) -> range:
        """Prompt lengths in tokens. Raises ConfigError where fewer than three fit."""
        end = self.context_length - MARGIN
        return _steps(SHORTEST, end, (end - SHORTEST) // self.prefill_granularity, "prefill")

    def decodes(self) -> Iterator[tuple[int, int]]:
        """(requests of one rank, context length) of every decode load. Raises ConfigError where too few fit."""
        end = self.context_length - OUTPUT
        found = False
        for isl in _steps(SHORTEST, end, end // self.decode_granularity, "decode"):
            most = self.max_kv_tokens // (isl + OUTPUT)
            for requests in range(1, most, max(1, most // self.decode_granularity)):
                found = True
                yield requests, isl + OUTPUT // 2
        if not found:
            raise ConfigError(
                f"sweep of decode loads: a KV cache of {self.max_kv_tokens} tokens holds no two requests: "
                "give the engine's own max_kv_tokens"
            )


def sweep_prefill(estimator: Estimator, grid: Grid) -> PrefillProfile:
    prompts = grid.prompts()
    times = tuple(estimator.prefill_s(isl) for isl in prompts)
    return PrefillProfile(
        isl=tuple(float(isl) for isl in prompts),
        ttft_s=times,
        throughput_per_gpu=tuple(grid.ranks * isl / t / grid.gpus for isl, t in zip(prompts, times, strict=True)),
    )


def sweep_decode(estimator: Estimator, grid: Grid) -> DecodeProfile:
    loads = list(grid.decodes())
    times = tuple(estimator.decode_s(requests, context) for requests, context in loads)
    return DecodeProfile(
        kv_usage=tuple(requests * context / grid.max_kv_tokens for requests, context in loads),
        context_length=tuple(float(context) for _, context in loads),
        itl_s=times,
        throughput_per_gpu=tuple(
            grid.ranks * requests / t / grid.gpus for (requests, _), t in zip(loads, times, strict=True)
        ),
        max_kv_tokens=float(grid.max_kv_tokens),
    )


def sweep_mixed(estimator: Estimator, grid: Grid) -> tuple[Fpm, ...]:
    """Every decode load beside the prefill that replaces its finished requests, half of that, and twice as much."""
    return tuple(
        Fpm(
            wall_time=estimator.mixed_s(prefill, requests, context),
            scheduled_requests=ScheduledRequests(
                num_prefill_requests=math.ceil(prefill / grid.isl),
                sum_prefill_tokens=prefill,
                num_decode_requests=requests,
                sum_decode_kv_tokens=requests * context,
            ),
        )
        for requests, context in grid.decodes()
        for prefill in sorted({_prefill_beside(requests, share, grid) for share in SHARES})
    )


def _prefill_beside(requests: int, share: float, grid: Grid) -> int:
    """In steady state one in `osl` requests ends with each iteration, and a prompt of `isl` tokens takes its place."""
    return min(MOST_PREFILL, max(1, round(share * requests * grid.isl / grid.osl)))


def sweep(estimator: Estimator, grid: Grid, *, prefill: bool, decode: bool) -> EngineProfile:
    """The profile of an engine that does this kind of work; one that does both is asked for mixed iterations too."""
    return EngineProfile(
        prefill=sweep_prefill(estimator, grid) if prefill else None,
        decode=sweep_decode(estimator, grid) if decode else None,
        mixed=sweep_mixed(estimator, grid) if prefill and decode else (),
    )


def _steps(start: int, end: int, step: int, what: str) -> range:
    lengths = range(start, end, step) if step > 0 else range(0)
    if len(lengths) < FEWEST:
        raise ConfigError(
            f"sweep of {what} lengths: fewer than {FEWEST} fit between {start} and {end} tokens: "
            f"raise sweep_max_context_length or lower {what}_interpolation_granularity"
        )
    return lengths
