"""PlannerConfig: what an operator sets, in the reference planner's names, units and defaults where it has them.

Deliberate differences from the reference defaults: `load_predictor` is `kalman` (its `arima` measured worse than the last
value), and everything that the reference accepts silently (unknown keys, budgets that contradict) is an error here.
"""

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.errors import ConfigError

Mode = Literal["disagg", "prefill", "decode", "agg"]
Target = Literal["throughput", "latency", "load", "sla"]
Positive = Annotated[float, Meta(gt=0.0, le=1e9)]
Replicas = Annotated[int, Meta(ge=0, le=100_000)]
Gpus = Annotated[int, Meta(ge=-1, le=10_000_000)]
Percent = Annotated[float, Meta(ge=0.0, le=100.0)]

ROLES: dict[str, tuple[Role, ...]] = {
    "disagg": (PREFILL, DECODE),
    "prefill": (PREFILL,),
    "decode": (DECODE,),
    "agg": (AGG,),
}

ALIASES = {
    "ttft": "ttft_ms",
    "itl": "itl_ms",
    "throughput_adjustment_interval": "throughput_adjustment_interval_seconds",
    "load_adjustment_interval": "load_adjustment_interval_seconds",
}


class Scheduling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scale_interval_seconds: Positive | None = None  # base tick; default: gcd of the enabled intervals
    tick_max_duration_seconds: Positive = 30.0


class PlannerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable and valid: make one with :func:`planner_config`."""

    mode: Mode = "disagg"
    optimization_target: Target = "throughput"
    enable_throughput_scaling: bool = True
    enable_load_scaling: bool = False
    advisory: bool = False

    ttft_ms: Positive = 500.0
    itl_ms: Positive = 50.0
    throughput_adjustment_interval_seconds: Positive = 180.0
    load_adjustment_interval_seconds: Positive = 5.0
    scheduling: Scheduling = Scheduling()

    min_endpoint: Replicas = 1
    prefill_min_endpoint: Replicas | None = None
    decode_min_endpoint: Replicas | None = None
    max_gpu_budget: Gpus = 8  # hard ceiling; -1 = none
    min_gpu_budget: Gpus = -1
    prefill_engine_num_gpu: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    decode_engine_num_gpu: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    max_throughput_scaling_replicas: Annotated[int, Meta(ge=1, le=100_000)] = 8

    load_predictor: str = "kalman"
    load_predictor_log1p: bool = False
    kalman_q_level: Positive = 1.0
    kalman_q_trend: Positive = 0.1
    kalman_r: Positive = 10.0
    kalman_min_points: Annotated[int, Meta(ge=1, le=1000)] = 5

    load_scaling_down_sensitivity: Percent = 80.0
    load_min_observations: Annotated[int, Meta(ge=2, le=10_000)] = 5
    fpm_sample_bucket_size: Annotated[int, Meta(ge=1, le=1024)] = 16
    prefill_scale_up_queue_tokens: Annotated[float, Meta(ge=0.0)] | None = None
    prefill_scale_down_queue_tokens: Annotated[float, Meta(ge=0.0)] | None = None
    decode_scale_up_kv_rate: Percent | None = None
    decode_scale_down_kv_rate: Percent | None = None
    speculative_nextn: Annotated[int, Meta(ge=0, le=64)] = 0

    # Headrace's own
    ack_timeout_seconds: Positive = 1800.0  # from the issue of a decision
    fpm_stale_after_seconds: Positive = 10.0  # an engine this silent is unknown
    inventory_stale_after_seconds: Positive = 60.0
    floor_ttl_intervals: Positive = 3.0  # a floor without a newer forecast lives this many throughput intervals
    max_clock_skew_seconds: Positive = 30.0  # beyond it an engine's clock is not believed
    rejected_retry_seconds: Positive = 60.0  # the same targets are not asked for again sooner
    on_drift: Literal["reissue", "adopt"] = "reissue"  # counts changed by hand: ask again, or take them as they are

    @property
    def roles(self) -> tuple[Role, ...]:
        return ROLES[self.mode]

    @property
    def throughput_loop(self) -> bool:
        return self.enable_throughput_scaling and self.optimization_target == "sla"

    @property
    def load_loop(self) -> bool:
        return self.enable_load_scaling or self.optimization_target != "sla"

    @property
    def base_tick_seconds(self) -> float:
        """The grid on which the loops fall: the greatest common divisor of the enabled intervals, in whole milliseconds."""
        if self.scheduling.scale_interval_seconds is not None:
            return self.scheduling.scale_interval_seconds
        return math.gcd(*(round(1000 * s) for s in self.intervals)) / 1000

    @property
    def intervals(self) -> tuple[float, ...]:
        load = (self.load_adjustment_interval_seconds,) if self.load_loop else ()
        throughput = (self.throughput_adjustment_interval_seconds,) if self.throughput_loop else ()
        return load + throughput

    def min_endpoint_of(self, role: Role) -> int:
        own = {PREFILL: self.prefill_min_endpoint, DECODE: self.decode_min_endpoint}.get(role)
        return self.min_endpoint if own is None else own

    def engine_num_gpu(self, role: Role) -> int | None:
        """GPUs of one replica as configured; aggregated engines use the decode setting, as in the reference."""
        return self.prefill_engine_num_gpu if role == PREFILL else self.decode_engine_num_gpu


FIELDS = tuple(f.name for f in msgspec.structs.fields(PlannerConfig))


def planner_config(raw: Mapping[str, Any]) -> PlannerConfig:
    """A valid configuration from the names and aliases of the reference.

    Raises ConfigError naming the key, the rule and the remedy.
    """
    named: dict[str, Any] = {}
    for key, value in raw.items():
        name = ALIASES.get(key, key)
        if name not in FIELDS:
            raise ConfigError(unknown_key(key, (*FIELDS, *ALIASES)))
        if name in named:
            raise ConfigError(f"{key} and another spelling of {name} are both given: keep one of them")
        named[name] = value
    try:
        config = msgspec.convert(named, PlannerConfig)
    except msgspec.ValidationError as e:
        raise ConfigError(f"planner configuration: {e}") from e
    for check in (_check_loops, _check_intervals, _check_budgets, _check_thresholds):
        check(config)
    return config


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a key that nobody knows, with the nearest one that exists."""
    near = get_close_matches(key, list(known), n=1)
    return f"unknown key {key!r}" + (f": did you mean {near[0]!r}?" if near else ": see docs/configuration.md for the known ones")


def _check_loops(c: PlannerConfig) -> None:
    if not (c.throughput_loop or c.load_loop):
        raise ConfigError(
            "enable_throughput_scaling and enable_load_scaling are both off: nothing would ever be decided. Enable one of them."
        )
    if c.mode in ("prefill", "decode", "agg"):
        for role in (PREFILL, DECODE):
            if role != c.mode and getattr(c, f"{role}_min_endpoint") is not None:
                raise ConfigError(f"{role}_min_endpoint is set, but mode {c.mode!r} plans no {role} workers: remove it")


def _check_intervals(c: PlannerConfig) -> None:
    load, throughput = c.load_adjustment_interval_seconds, c.throughput_adjustment_interval_seconds
    if c.load_loop and c.throughput_loop and load >= throughput:
        raise ConfigError(
            f"load_adjustment_interval_seconds ({load:g}) must be shorter than throughput_adjustment_interval_seconds "
            f"({throughput:g}): the load loop corrects between two throughput decisions. Lower the first or raise the second."
        )
    for seconds in c.intervals:
        if round(1000 * seconds) < 1:
            raise ConfigError(f"an adjustment interval of {seconds:g} s is below one millisecond: raise it")
        ratio = seconds / c.base_tick_seconds
        if abs(ratio - round(ratio)) > 1e-9 * max(1.0, ratio) or round(ratio) < 1:
            raise ConfigError(
                f"scheduling.scale_interval_seconds ({c.base_tick_seconds:g}) must divide the adjustment interval of {seconds:g} s: "
                "remove it (the greatest common divisor is the default) or choose a divisor."
            )


def _check_budgets(c: PlannerConfig) -> None:
    if 0 <= c.max_gpu_budget < c.min_gpu_budget:
        raise ConfigError(
            f"min_gpu_budget ({c.min_gpu_budget}) is above max_gpu_budget ({c.max_gpu_budget}): lower the first or raise the second"
        )
    needs = [(role, c.min_endpoint_of(role), c.engine_num_gpu(role)) for role in c.roles]
    least = sum(n * (gpus or 0) for _, n, gpus in needs)
    if 0 <= c.max_gpu_budget < least:
        parts = " + ".join(f"{n} {role} x {gpus} GPUs" for role, n, gpus in needs)
        raise ConfigError(
            f"max_gpu_budget ({c.max_gpu_budget}) is below the least fleet of {least} GPUs ({parts}): raise it or lower min_endpoint"
        )


def _check_thresholds(c: PlannerConfig) -> None:
    if c.optimization_target != "load":
        return
    pairs = []
    if PREFILL in c.roles:
        pairs.append(("prefill_scale_up_queue_tokens", "prefill_scale_down_queue_tokens"))
    if c.mode != "prefill":
        pairs.append(("decode_scale_up_kv_rate", "decode_scale_down_kv_rate"))
    for up_name, down_name in pairs:
        up, down = getattr(c, up_name), getattr(c, down_name)
        if up is None or down is None:
            raise ConfigError(f"optimization_target 'load' in mode {c.mode!r} needs {up_name} and {down_name}: set both")
        if up <= down:
            raise ConfigError(f"{up_name} ({up:g}) must be above {down_name} ({down:g}), or workers would come and go: raise the first")


assert set(ROLES) == set(get_args(Mode))
