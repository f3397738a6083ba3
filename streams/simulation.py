"""What is simulated, from one section of the configuration; shared by `headrace simulate` and `headrace demo`."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headrace.connectors.simulator.config import SimulatorConfig, Sla, from_preset
from headrace.connectors.simulator.loads import LoadSpec, generate
from headrace.connectors.simulator.traces import Trace, load_trace, overlay, scale_rate, scale_time
from headrace.schemas.base import Role
from headrace.schemas.errors import ConfigError
from headrace.streams.settings import Settings

Positive = Annotated[float, Meta(gt=0.0, le=1e6)]


class SimulationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`trace` None = a generated `load`. `fleet` None = two workers of each role that the planner's mode has."""

    preset: str = "mocker"
    fleet: dict[Role, Annotated[int, Meta(ge=1, le=10_000)]] | None = None
    startup_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 30.0
    trace: str | None = None
    overlay: Annotated[int, Meta(ge=1, le=1000)] = 1
    rate_factor: Positive = 1.0
    time_factor: Positive = 1.0  # above 1: the trace is stretched
    load: LoadSpec = LoadSpec(shape="hour")
    seed: int = 1


def simulation_settings(raw: Mapping[str, Any] | None, **flags: Any) -> SimulationSettings:
    """The `simulator` section with the flags that were given on top. Raises ConfigError naming the key."""
    merged = dict(raw or {}) | {key: value for key, value in flags.items() if value is not None}
    try:
        return msgspec.convert(merged, SimulationSettings)
    except msgspec.ValidationError as e:
        known = ", ".join(SimulationSettings.__struct_fields__)
        raise ConfigError(f"simulator: {e}. The keys are {known}") from e


def trace_of(s: SimulationSettings) -> Trace:
    """The requests to simulate: a file, overlaid and scaled as asked, or a generated load."""
    trace = load_trace(s.trace) if s.trace else generate(s.load)
    if s.overlay > 1:
        trace = overlay(trace, s.overlay, seed=s.seed)
    if s.rate_factor != 1.0:
        trace = scale_rate(trace, s.rate_factor, seed=s.seed)
    return scale_time(trace, s.time_factor) if s.time_factor != 1.0 else trace


def cluster_config(s: SimulationSettings, settings: Settings, **more: Any) -> SimulatorConfig:
    """The cluster under the planner's own SLA. Raises ConfigError when its mode cannot be simulated."""
    planner = settings.planner
    roles = planner.roles
    fleet = s.fleet or dict.fromkeys(roles, 2)
    if set(fleet) != set(roles):
        raise ConfigError(
            f"simulator.fleet names {', '.join(sorted(fleet))}, but mode {planner.mode!r} plans {', '.join(roles)}"
        )
    sla = Sla(ttft_ms=planner.ttft_ms, itl_ms=planner.itl_ms)
    return from_preset(s.preset, fleet, sla=sla, startup_s=s.startup_s, dgd=settings.edges.dgd,
                       dynamo_namespace=settings.dynamo_namespace, **more)  # fmt: skip
