"""What the reference is told: its configuration, its engines, and what is there on a tick."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from headrace.models.reference.engine import Learning
from headrace.models.reference.perf import Limits
from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.config import PlannerConfig
from headrace.schemas.fpm import Fpm

ROLES: Mapping[str, tuple[Role, ...]] = {"prefill": (PREFILL,), "decode": (DECODE,), "agg": (AGG,)}
DISAGG = (PREFILL, DECODE)
PREDICTORS = ("constant", "arima", "kalman", "prophet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The keys of the reference that its decisions look at, with what it accepts: nothing is refused here."""

    mode: str = "disagg"
    optimization_target: str = "throughput"
    enable_load_scaling: bool = False
    enable_throughput_scaling: bool = True
    ttft_ms: float = 500.0
    itl_ms: float = 50.0
    min_endpoint: int = 1
    min_gpu_budget: int = -1
    max_gpu_budget: int = 8
    load_scaling_down_sensitivity: float = 80.0
    load_min_observations: int = 5
    max_num_fpm_samples: int = 64
    fpm_sample_bucket_size: int = 16
    load_adjustment_interval_seconds: float = 5.0
    throughput_adjustment_interval_seconds: float = 180.0
    speculative_nextn: int = 0
    prefill_scale_up_queue_tokens: float | None = None
    prefill_scale_down_queue_tokens: float | None = None
    decode_scale_up_kv_rate: float | None = None
    decode_scale_down_kv_rate: float | None = None
    load_predictor: str = "arima"
    load_predictor_log1p: bool = False
    prophet_window_size: int = 50
    kalman_q_level: float = 1.0
    kalman_q_trend: float = 0.1
    kalman_r: float = 10.0

    @classmethod
    def of(cls, config: PlannerConfig) -> "Settings":
        """What of our configuration the reference would have been told.

        A forecaster that it does not have is replaced by its lightest one that follows a trend, `kalman`.
        """
        told = {f.name: getattr(config, f.name) for f in fields(cls) if hasattr(config, f.name)}
        if told["load_predictor"] not in PREDICTORS:
            told["load_predictor"] = "kalman"
        return cls(**told)

    @property
    def sla(self) -> bool:
        return self.optimization_target == "sla"

    @property
    def load(self) -> bool:
        """Without latencies to meet, the load loop alone runs."""
        return self.enable_load_scaling or not self.sla

    @property
    def throughput(self) -> bool:
        return self.enable_throughput_scaling and self.sla

    @property
    def roles(self) -> tuple[Role, ...]:
        return ROLES.get(self.mode, DISAGG)

    @property
    def sensitivity(self) -> float:
        return self.load_scaling_down_sensitivity / 100

    @property
    def learning(self) -> Learning:
        return Learning(self.max_num_fpm_samples, self.load_min_observations, self.fpm_sample_bucket_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What one engine of a role is. None: it has not said."""

    num_gpu: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_kv_tokens: int | None = None
    context_length: int | None = None
    speculative_nextn: int | None = None

    @property
    def limits(self) -> Limits | None:
        """With the defaults for what has not been said; None where one is not positive."""
        said = (self.max_num_batched_tokens, self.max_num_seqs, self.max_kv_tokens)
        if any(limit is not None and limit <= 0 for limit in said):
            return None
        d = Limits()
        tokens, seqs, kv = said
        return Limits(tokens or d.max_num_batched_tokens, seqs or d.max_num_seqs, kv or d.max_kv_tokens)


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one role."""

    ready: int | None = None
    expected: int | None = None  # None: nobody knows, which counts as stable
    scaling: bool = False

    @property
    def in_progress(self) -> bool:
        return self.scaling or (self.expected is not None and self.expected != self.ready)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one window. Requests are a count, lengths are means of tokens."""

    duration_s: float
    num_req: float
    isl: float
    osl: float
    kv_hit_rate: float | None = None
    accept_length: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there on one tick, by role. A role without FPMs is not named in `fpms`."""

    pools: Mapping[Role, Pool] = field(default_factory=dict)
    fpms: Mapping[Role, list[Fpm]] = field(default_factory=dict)
    traffic: Traffic | None = None

    def pool(self, role: Role) -> Pool:
        return self.pools.get(role, Pool())

    def engines(self, role: Role) -> list[Fpm]:
        return self.fpms.get(role) or []
