"""What a profile is asked for, whatever interpolates it."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headrace.schemas.errors import ConfigError

# measured: between neighbouring points never above or below both, and held beyond what was measured.
# reference: cubic, as the reference planner of Dynamo 0.4.1; docs/profiles.md shows where that goes wrong.
Scheme = Literal["measured", "reference"]

POINTS = 100  # KV usages that a search looks at, as in the reference


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One load of a decode engine: tokens/s/GPU, seconds between tokens, and the share of the KV cache in use.

    `meets_sla` False: no load meets it, and this is the one to start from.
    """

    throughput_per_gpu: float
    itl_s: float
    kv_usage: float
    meets_sla: bool


class PrefillTable(Protocol):
    """A prefill engine, by prompt length in tokens. Beyond what was measured the nearest measured length answers."""

    def ttft_s(self, isl: float) -> float: ...

    def throughput_per_gpu(self, isl: float) -> float: ...


class DecodeTable(Protocol):
    """A decode engine, by requests at once and context length in tokens."""

    def itl_s(self, concurrency: float, context_length: float) -> float: ...

    def throughput_per_gpu(self, concurrency: float, context_length: float) -> float: ...

    def find_best_throughput_per_gpu(self, itl_s: float, context_length: float) -> OperatingPoint:
        """The best load within an ITL of so many seconds."""
        ...


def scipy_part(name: str) -> Any:
    """scipy.`name`, imported when it is needed. Raises ConfigError where scipy is not installed."""
    try:
        if name == "interpolate":
            from scipy import interpolate as part
        else:
            from scipy import spatial as part
    except ImportError as e:
        raise ConfigError("interpolating a profile needs scipy: pip install headrace[profile]") from e
    return part
