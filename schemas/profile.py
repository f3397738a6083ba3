"""What was measured of an engine before it serves: profiles of prefill and decode, and iterations.

Not a record on a stream: it is read once, when a planner starts. Every column of a profile has one number per measured
point. Lengths are tokens, times are seconds, `throughput_per_gpu` is tokens per second and GPU.
"""

import math
from collections.abc import Mapping

import msgspec

from headrace.schemas.errors import ConfigError
from headrace.schemas.fpm import Fpm

Numbers = tuple[float, ...]


class PrefillProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How long an engine that does nothing else takes for one prompt. Raises ConfigError for columns that cannot be."""

    isl: Numbers  # tokens of the prompt
    ttft_s: Numbers
    throughput_per_gpu: Numbers

    def __post_init__(self) -> None:
        columns = {"isl": self.isl, "ttft_s": self.ttft_s, "throughput_per_gpu": self.throughput_per_gpu}
        _check("prefill", columns, above_zero=("isl", "ttft_s"))


class DecodeProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How long an iteration of a decode engine takes, by how full its KV cache is and how long the contexts are.

    Raises ConfigError for columns that cannot be.
    """

    kv_usage: Numbers  # 0 to 1, of `max_kv_tokens`
    context_length: Numbers  # tokens of each request
    itl_s: Numbers
    throughput_per_gpu: Numbers
    max_kv_tokens: float

    def __post_init__(self) -> None:
        columns = {
            "kv_usage": self.kv_usage,
            "context_length": self.context_length,
            "itl_s": self.itl_s,
            "throughput_per_gpu": self.throughput_per_gpu,
        }
        _check("decode", columns, above_zero=("context_length", "itl_s"))
        if not (math.isfinite(self.max_kv_tokens) and self.max_kv_tokens >= 1):
            raise ConfigError(
                f"decode profile: max_kv_tokens is {self.max_kv_tokens:g}, and a KV cache holds at least one token: "
                "measure again"
            )


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of an engine beforehand; None = not measured.

    `fpms` are iterations as an engine reports them, `mixed` the same for iterations that prefill and decode at once.
    """

    prefill: PrefillProfile | None = None
    decode: DecodeProfile | None = None
    fpms: tuple[Fpm, ...] = ()
    mixed: tuple[Fpm, ...] = ()


def _check(what: str, columns: Mapping[str, Numbers], *, above_zero: tuple[str, ...]) -> None:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ConfigError(
            f"{what} profile: the columns must be of equal length, one row per measured point; got {shown}"
        )
    if not next(iter(lengths.values())):
        raise ConfigError(f"{what} profile: it holds no point; measure again or remove it")
    for name, column in columns.items():
        for i, value in enumerate(column):
            if not math.isfinite(value) or value < 0 or (value == 0 and name in above_zero):
                rule = "above 0" if name in above_zero else "at least 0"
                raise ConfigError(
                    f"{what} profile: {name}[{i}] is {value}, and must be finite and {rule}: "
                    "remove that point from all columns or measure it again"
                )
