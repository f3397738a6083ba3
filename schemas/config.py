"""PlannerConfig: what an operator sets, in the reference planner's names, units and defaults where it has them.

Deliberate differences from the reference: those in `config_reference.DIFFERENCES`; and what it accepts silently
(unknown keys, budgets that contradict) is an error here. docs/configuration.md is made from the fields and comments.
"""

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from headrace.schemas.aic import AicSpec
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.config_reference import REFERENCE_KEYS, RETIRED, accepted, split
from headrace.schemas.errors import ConfigError

Mode = Literal["disagg", "prefill", "decode", "agg"]
Target = Literal["throughput", "latency", "load", "sla"]
Policy = Literal["reference", "queue_aware", "correction", "reference_exact"]
Positive = Annotated[float, Meta(gt=0.0, le=1e9)]
Replicas = Annotated[int, Meta(ge=0, le=100_000)]
Gpus = Annotated[int, Meta(ge=-10_000_000, le=10_000_000)]
ReplicaGpus = Annotated[int, Meta(ge=1, le=100_000)]
Step = Annotated[int, Meta(ge=1, le=100_000)]
Observations = Annotated[int, Meta(ge=1, le=10_000)]
Percent = Annotated[float, Meta(ge=0.0, le=100.0)]
Variance = Annotated[float, Meta(ge=0.0, le=1e9)]
Tokens = Annotated[float, Meta(ge=0.0, le=1e15)]

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
    scale_interval_seconds: Positive | None = None  # base tick; null: the greatest common divisor of enabled intervals
    tick_max_duration_seconds: Positive = 30.0  # accepted; a tick here is arithmetic alone and waits for nothing


class PlannerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Immutable and valid: make one with :func:`planner_config`."""

    mode: Mode = "disagg"  # which roles are planned
    optimization_target: Target = "throughput"  # `sla`: latencies; the others: thresholds on queues and KV use
    enable_throughput_scaling: bool = True  # plan with a forecast of traffic; only with target `sla`
    enable_load_scaling: bool = False  # plan, more often, with what engines have queued; other targets always do it
    advisory: bool = False  # decisions are published for people to read, and nobody acts

    ttft_ms: Positive = 500.0  # the target for the time to first token
    itl_ms: Positive = 50.0  # the target for the time between two tokens
    throughput_adjustment_interval_seconds: Positive = 180.0  # how far one forecast reaches
    load_adjustment_interval_seconds: Positive = 5.0  # shorter than the other where both loops run
    scheduling: Scheduling = Scheduling()  # the grid of ticks

    min_endpoint: Replicas = 1  # the least of every role
    prefill_min_endpoint: Replicas | None = None  # null: min_endpoint
    decode_min_endpoint: Replicas | None = None  # null: min_endpoint
    max_gpu_budget: Gpus = 8  # a hard ceiling; negative: none
    min_gpu_budget: Gpus = -1  # a floor, as far as whole replicas fit below the ceiling; negative: none
    prefill_engine_num_gpu: ReplicaGpus | None = None  # of a replica, all its nodes; null: as the inventory says
    decode_engine_num_gpu: ReplicaGpus | None = None  # the same, aggregated or not
    max_throughput_scaling_replicas: Step = 8  # the farthest step of one forecast

    capacity_policy: Policy = "queue_aware"  # see docs/scaling.md; `reference`: floors, and one replica at a time
    queue_late_share: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.25  # of requests that may miss, at the planned demand
    scale_down_window_seconds: Positive = 60.0  # of less demand before anything shrinks; twice the start-up at least

    no_correction: bool = False  # policy `correction` believes the profiles alone (Dynamo 0.4: --no-correction)
    correction_most_growth: Annotated[float, Meta(ge=1.0, le=100.0)] = 2.0  # times what the profiles alone ask for

    load_predictor: str = "auto"  # the forecaster; `auto` mixes those that have been good lately
    load_predictor_log1p: bool = False  # forecast log(1 + value): growth by factors
    load_predictor_warmup_trace: str | None = None  # recorded load to learn from before the first start; null: none
    kalman_q_level: Variance = 1.0  # variance of the level
    kalman_q_trend: Variance = 0.1  # variance of the trend
    kalman_r: Variance = 10.0  # variance of the measurement
    kalman_min_points: Annotated[int, Meta(ge=1, le=1000)] = 5  # before, the last value is the forecast
    prophet_window_size: Annotated[int, Meta(ge=5, le=10_000)] = 50  # newest values that prophet is fitted to

    load_scaling_down_sensitivity: Percent = 80.0  # of the target that survivors may use; 0: never down
    load_min_observations: Observations = 5  # of a kind before its speed is believed
    fpm_sample_bucket_size: Annotated[int, Meta(ge=2, le=1024)] = 16  # of load, in which speed is remembered
    prefill_scale_up_queue_tokens: Tokens | None = None  # queued on an engine; target `load`
    prefill_scale_down_queue_tokens: Tokens | None = None  # queued on an engine; target `load`
    decode_scale_up_kv_rate: Percent | None = None  # of an engine's KV, used or waited for; target `load`
    decode_scale_down_kv_rate: Percent | None = None  # of an engine's KV, used or waited for; target `load`
    speculative_nextn: Annotated[int, Meta(ge=0, le=64)] = 0  # guessed per step, where the inventory does not say

    profile_results_dir: str | None = "profiling_results"  # of a sweep: engine speed beforehand; it need not be there
    aic_interpolation: AicSpec | None = None  # ask AI Configurator for engine speed beforehand; docs/profiles.md

    # Headrace's own
    benchmark_files: dict[Role, str] | None = None  # role -> file with its workers' answer of `get_perf_metrics`
    shadow_reference: bool = False  # the tick report also says what Dynamo's planner would have decided
    ack_timeout_seconds: Positive = 1800.0  # from the issue of a decision; then it is given up
    fpm_stale_after_seconds: Positive = 10.0  # an engine this silent is unknown
    inventory_stale_after_seconds: Positive = 60.0  # an inventory this old is unknown, and nothing is decided
    floor_ttl_intervals: Positive = 3.0  # of throughput, that a floor lives without a newer forecast
    max_clock_skew_seconds: Positive = 30.0  # a clock that is further off is not believed
    rejected_retry_seconds: Positive = 60.0  # the same targets are not asked for again sooner
    on_drift: Literal["reissue", "adopt"] = "reissue"  # counts changed by hand: ask again, or take them as they are

    @property
    def roles(self) -> tuple[Role, ...]:
        return ROLES[self.mode]

    @property
    def throughput_loop(self) -> bool:
        return self.enable_throughput_scaling and self.optimization_target == "sla"

    @property
    def queue_aware(self) -> bool:
        """Is the fleet sized for demand and backlog, in place of the reference's floors and steps of one?

        The switches of the two loops then say how often, and from what:

        * both: every load interval, from traffic, forecast and what engines have queued;
        * `enable_load_scaling` alone: the same without a forecast; while nobody measures traffic, one replica at a
          time by what engines have queued;
        * `enable_throughput_scaling` alone: every throughput interval, from traffic and forecast; queues have no
          say. This is the default, and the slowest to react.
        """
        return self.capacity_policy == "queue_aware" and self.optimization_target == "sla"

    @property
    def correction(self) -> bool:
        """Is the throughput loop that of Dynamo 0.4: profiles, and how far off they were?"""
        return self.capacity_policy == "correction"

    @property
    def reference_exact(self) -> bool:
        """Is decided what Dynamo's planner would decide, its mistakes included?"""
        return self.capacity_policy == "reference_exact"

    @property
    def load_loop(self) -> bool:
        return self.enable_load_scaling or self.optimization_target != "sla"

    @property
    def planning_interval_seconds(self) -> float:
        """How long a queue-aware fleet stays as it is before the next look: the interval of the faster enabled loop."""
        return min(self.intervals)

    @property
    def base_tick_seconds(self) -> float:
        """The grid on which the loops fall, seconds: the greatest common divisor of the enabled intervals."""
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

MOST_TICKS = 100  # per interval of the faster loop, where a tick is below a second; more is a mistake in the intervals
_SHOWN = 64  # characters of a key that nobody knows


def planner_config(raw: Mapping[str, Any]) -> PlannerConfig:
    """A valid configuration from the names and aliases of the reference. Keys of its alone are checked and left out.

    Raises ConfigError naming the key, the rule and the remedy.
    """
    ours, theirs = split(raw)
    named: dict[str, Any] = {}
    for key, value in ours.items():
        name = ALIASES.get(key, key)
        if name not in FIELDS:
            raise ConfigError(unknown_key(str(key), (*FIELDS, *ALIASES, *REFERENCE_KEYS)))
        if name in named:
            raise ConfigError(f"{key} and another spelling of {name} are both given: keep one of them")
        named[name] = value
    try:
        config = msgspec.convert(named, PlannerConfig, strict=False)  # the reference takes "500" for 500 too
    except msgspec.ValidationError as e:
        raise ConfigError(f"planner configuration: {e}{_given(str(e), named)}") from e
    for check in (_check_loops, _check_policy, _check_intervals, _check_budgets, _check_thresholds):
        check(config)
    accepted(theirs, advisory=config.advisory)
    return config


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a key that nobody knows: what says the same now, or the nearest one that exists."""
    if (flag := key.replace("-", "_").lower()) in RETIRED:
        return f"{key} is a flag of the planner of Dynamo 0.4; what says the same now: {RETIRED[flag]}"
    shown = key if len(key) <= _SHOWN else key[:_SHOWN] + "..."
    near = get_close_matches(key[:_SHOWN], list(known), n=1)
    hint = f": did you mean {near[0]!r}?" if near else ": see docs/configuration.md for the known ones"
    return f"unknown key {shown!r}{hint}"


def _given(message: str, raw: Mapping[str, Any]) -> str:
    """The value that a message of msgspec is about, and what would do where there is a choice."""
    path = message.rpartition("`$.")[2].rstrip("`")
    if "`$." not in message or path not in raw or "unknown field" in message:
        return ""
    kind = next(f.type for f in msgspec.structs.fields(PlannerConfig) if f.name == path)
    choice = ", ".join(get_args(kind)) if get_origin(kind) is Literal else ""
    return f", not {raw[path]!r}" + (f"; it may be {choice}" if choice else "")


def _check_loops(c: PlannerConfig) -> None:
    if not (c.throughput_loop or c.load_loop):
        raise ConfigError(
            "enable_throughput_scaling and enable_load_scaling are both off: nothing would ever be decided. "
            "Enable one of them."
        )
    if c.mode in ("prefill", "decode", "agg"):
        for role in (PREFILL, DECODE):
            if role != c.mode and getattr(c, f"{role}_min_endpoint") is not None:
                raise ConfigError(f"{role}_min_endpoint is set, but mode {c.mode!r} plans no {role} workers: remove it")


def _check_policy(c: PlannerConfig) -> None:
    if c.correction and not (c.throughput_loop and c.mode == "disagg"):
        raise ConfigError(
            "capacity_policy 'correction' sizes prefill and decode once per throughput interval: it needs mode "
            "'disagg', optimization_target 'sla' and enable_throughput_scaling; set them or choose another policy"
        )


def _check_intervals(c: PlannerConfig) -> None:
    load, throughput = c.load_adjustment_interval_seconds, c.throughput_adjustment_interval_seconds
    if c.load_loop and c.throughput_loop and load >= throughput:
        raise ConfigError(
            f"load_adjustment_interval_seconds ({load:g}) must be shorter than throughput_adjustment_interval_seconds "
            f"({throughput:g}): the load loop corrects between two throughput decisions. "
            "Lower the first or raise the second."
        )
    for seconds in c.intervals:
        if round(1000 * seconds) < 1 or abs(1000 * seconds - round(1000 * seconds)) > 1e-6:
            raise ConfigError(f"an adjustment interval of {seconds!r} s is not whole milliseconds: round it")
    base = c.base_tick_seconds
    for seconds in c.intervals:
        ratio = seconds / base
        if abs(ratio - round(ratio)) > 1e-9 * max(1.0, ratio) or round(ratio) < 1:
            raise ConfigError(
                f"scheduling.scale_interval_seconds ({base:g}) must divide the adjustment interval of {seconds:g} s: "
                "remove it (the greatest common divisor is the default) or choose a divisor."
            )
    if base < 1 and min(c.intervals) / base > MOST_TICKS:
        raise ConfigError(
            f"a tick every {base:g} s is more than {MOST_TICKS} ticks per adjustment interval: choose intervals with a "
            "larger common divisor, or a longer scheduling.scale_interval_seconds"
        )


def _check_budgets(c: PlannerConfig) -> None:
    if 0 <= c.max_gpu_budget < c.min_gpu_budget:
        raise ConfigError(
            f"min_gpu_budget ({c.min_gpu_budget}) is above max_gpu_budget ({c.max_gpu_budget}): "
            "lower the first or raise the second"
        )
    needs = [(role, c.min_endpoint_of(role), c.engine_num_gpu(role)) for role in c.roles]
    least = sum(n * (gpus or 0) for _, n, gpus in needs)
    if 0 <= c.max_gpu_budget < least:
        parts = " + ".join(f"{n} {role} x {gpus} GPUs" for role, n, gpus in needs if gpus is not None)
        raise ConfigError(
            f"max_gpu_budget ({c.max_gpu_budget}) is below the least fleet of {least} GPUs ({parts}): "
            "raise it or lower min_endpoint"
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
            raise ConfigError(
                f"optimization_target 'load' in mode {c.mode!r} needs {up_name} and {down_name}: set both"
            )
        if up <= down:
            raise ConfigError(
                f"{up_name} ({up:g}) must be above {down_name} ({down:g}), or workers come and go: raise the first"
            )


assert set(ROLES) == set(get_args(Mode))
