"""What is simulated: roles and their replicas, engine timing and limits, KV transfer, routing, the SLA."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from headrace.connectors.simulator.timing import Limits, Timing, Transfer, preset
from headrace.schemas.base import AGG, DECODE, PREFILL, DgdName, Role
from headrace.schemas.errors import ConfigError

MODES: dict[str, tuple[Role, ...]] = {"disagg": (PREFILL, DECODE), "agg": (AGG,)}
COMPONENTS: dict[Role, str] = {PREFILL: "prefill", DECODE: "backend", AGG: "backend"}  # Dynamo's names
RouterKind = Literal["least_loaded", "round_robin"]


class RoleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One role: how many replicas it begins with, what one costs, how long a new one takes to be ready."""

    replicas: int = 1
    gpus_per_replica: int = 1
    startup_s: float = 30.0
    limits: Limits = Limits()


class Sla(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Targets of one request: its TTFT, and its mean ITL."""

    ttft_ms: float = 500.0
    itl_ms: float = 50.0

    @property
    def ttft_s(self) -> float:
        return self.ttft_ms / 1000.0

    @property
    def itl_s(self) -> float:
        return self.itl_ms / 1000.0


class SimulatorConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole simulated deployment. `origin_s` is the time (seconds since the epoch) at which the trace begins."""

    roles: dict[Role, RoleConfig]
    timing: Timing
    transfer: Transfer = Transfer()
    sla: Sla = Sla()
    router: RouterKind = "least_loaded"
    dgd: DgdName = "sim/cluster"
    dynamo_namespace: str = "dynamo"
    model: str = "simulated"
    origin_s: float = 1_700_000_000.0
    heartbeat_s: float = 1.0

    def __post_init__(self) -> None:
        if set(self.roles) not in [set(roles) for roles in MODES.values()]:
            raise ConfigError(f"roles {sorted(self.roles)} cannot be simulated: give prefill and decode, or agg alone")
        for role, r in self.roles.items():
            _check_role(role, r)
        _check_numbers(self)

    @property
    def disaggregated(self) -> bool:
        return AGG not in self.roles

    @property
    def fleet(self) -> dict[Role, int]:
        """The replicas that the simulation begins with."""
        return {role: r.replicas for role, r in self.roles.items()}

    def with_fleet(self, fleet: Mapping[Role, int]) -> "SimulatorConfig":
        """The same deployment, beginning with other replicas."""
        roles = {
            role: msgspec.structs.replace(r, replicas=fleet.get(role, r.replicas)) for role, r in self.roles.items()
        }
        return msgspec.structs.replace(self, roles=roles)

    def subject(self, role: Role) -> str:
        """The NATS subject on which Dynamo's workers of that role publish their FPMs."""
        return f"namespace.{self.dynamo_namespace}.component.{COMPONENTS[role]}.endpoint.generate.forward-pass-metrics"


def _check_role(role: Role, r: RoleConfig) -> None:
    if r.replicas < 0 or r.gpus_per_replica < 1 or not 0.0 <= r.startup_s < math.inf:
        raise ConfigError(
            f"role {role}: replicas ({r.replicas}) and startup_s ({r.startup_s}) must not be negative, "
            f"gpus_per_replica ({r.gpus_per_replica}) must be at least 1"
        )
    for name in Limits.__struct_fields__:
        if getattr(r.limits, name) < 1:
            raise ConfigError(f"role {role}: {name} must be at least 1, not {getattr(r.limits, name)}")
    if r.limits.max_num_seqs > r.limits.max_num_batched_tokens:
        raise ConfigError(
            f"role {role}: max_num_seqs ({r.limits.max_num_seqs}) must not exceed max_num_batched_tokens "
            f"({r.limits.max_num_batched_tokens}): each sequence takes a token of an iteration"
        )


def _check_numbers(c: SimulatorConfig) -> None:
    p, d = c.timing.prefill, c.timing.decode
    durations = [p.base_s, p.per_token_s, p.per_kv_token_s, d.base_s, d.per_request_s, d.per_kv_token_s]
    if any(not 0.0 <= x < math.inf for x in [*durations, c.transfer.latency_s, c.origin_s]):
        raise ConfigError("timing, transfer.latency_s and origin_s must be finite and not negative")
    if p.base_s + p.per_token_s <= 0.0 or d.base_s + d.per_request_s <= 0.0:
        raise ConfigError("an iteration must take some time: give timing.prefill and timing.decode a base_s above zero")
    if c.transfer.tokens_per_s is not None and not 0.0 < c.transfer.tokens_per_s < math.inf:
        raise ConfigError(
            f"transfer.tokens_per_s ({c.transfer.tokens_per_s}) must be above zero; leave it out for a free transfer"
        )
    if not 0.0 < c.sla.ttft_ms < math.inf or not 0.0 < c.sla.itl_ms < math.inf:
        raise ConfigError(f"sla: ttft_ms ({c.sla.ttft_ms}) and itl_ms ({c.sla.itl_ms}) must be finite and above zero")
    if not 0.0 < c.heartbeat_s < math.inf:
        raise ConfigError(f"heartbeat_s ({c.heartbeat_s}) must be above zero: an idle engine is not silent")


def from_preset(
    name: str,
    fleet: Mapping[Role, int],
    *,
    sla: Sla | None = None,
    startup_s: float = 30.0,
    **more: Any,
) -> SimulatorConfig:
    """A deployment of one of the named engines. `more` are further fields of SimulatorConfig. Raises ConfigError."""
    engine = preset(name)
    roles = {
        role: RoleConfig(
            replicas=n, gpus_per_replica=engine.gpus_per_replica, startup_s=startup_s, limits=engine.limits
        )
        for role, n in fleet.items()
    }
    return SimulatorConfig(roles=roles, timing=engine.timing, transfer=engine.transfer, sla=sla or Sla(), **more)


def parse(data: Mapping[str, Any]) -> SimulatorConfig:
    """A configuration from plain data (JSON, YAML). Raises ConfigError naming the field."""
    try:
        return msgspec.convert(data, SimulatorConfig)
    except msgspec.ValidationError as e:
        raise ConfigError(f"simulator configuration: {e}. See docs/simulator.md for the fields") from e
