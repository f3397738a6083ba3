"""Reads what a worker measured of itself when it started: the answer of Dynamo's `get_perf_metrics` endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import Fpm

POINT_TYPES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Iterations of the points that were asked for, and how many were left out as unusable."""

    fpms: tuple[Fpm, ...]
    skipped: int = 0


def read_benchmark(answer: bytes | Mapping[str, Any], point_types: tuple[str, ...] = POINT_TYPES) -> Benchmark:
    """The FPMs of `results[]` whose `point.point_type` is one of `point_types`, in their order.

    An FPM without a positive wall time is a heartbeat and not an iteration; it and what cannot be read are counted and
    left out: one bad point does not spoil a benchmark. Raises ConfigError where the answer has no `results`.
    """
    results = _results(answer)
    fpms: list[Fpm] = []
    skipped = 0
    for result in results:
        point = result.get("point") if isinstance(result, dict) else None
        kind = point.get("point_type") if isinstance(point, dict) else None
        given = result.get("fpms") if kind in POINT_TYPES else None
        if not isinstance(given, list):
            skipped += 1
            continue
        if kind in point_types:
            read = [_fpm(raw) for raw in given]
            fpms += [fpm for fpm in read if fpm is not None]
            skipped += read.count(None)
    return Benchmark(tuple(fpms), skipped)


def _results(answer: bytes | Mapping[str, Any]) -> list[Any]:
    try:
        decoded = msgspec.json.decode(answer) if isinstance(answer, bytes) else answer
    except (msgspec.DecodeError, RecursionError) as e:
        raise ConfigError(
            f"the answer of get_perf_metrics is no JSON ({e}): the worker may be of another version"
        ) from e
    results = decoded.get("results") if isinstance(decoded, Mapping) else None
    if not isinstance(results, list):
        raise ConfigError(
            "the answer of get_perf_metrics has no list `results`: start the workers with their self-benchmark on"
        )
    return results


def _fpm(raw: Any) -> Fpm | None:
    try:
        fpm = msgspec.convert(raw, Fpm)
    except msgspec.ValidationError:
        return None
    return fpm if fpm.wall_time > 0 else None
