"""The configuration of the reference planner (NVIDIA Dynamo 1.4.2 and 1.6.1): what is shared, and what else it has.

Every key of both versions is either a field of `PlannerConfig` (SHARED) or an entry of REFERENCE_KEYS. The second are
accepted with the reference's types, and say what stands in their place; what would change decisions if it were ignored
is refused, unless the planner only advises.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from headrace.schemas.errors import ConfigError

# Keys that mean the same there. The default is theirs too, except where DEFAULTS says which theirs is.
SHARED = frozenset(
    {
        "mode",
        "optimization_target",
        "enable_throughput_scaling",
        "enable_load_scaling",
        "advisory",
        "ttft_ms",
        "itl_ms",
        "throughput_adjustment_interval_seconds",
        "load_adjustment_interval_seconds",
        "scheduling",
        "scheduling.scale_interval_seconds",
        "scheduling.tick_max_duration_seconds",
        "min_endpoint",
        "prefill_min_endpoint",
        "decode_min_endpoint",
        "max_gpu_budget",
        "min_gpu_budget",
        "prefill_engine_num_gpu",
        "decode_engine_num_gpu",
        "max_throughput_scaling_replicas",
        "load_predictor",
        "load_predictor_log1p",
        "load_predictor_warmup_trace",
        "kalman_q_level",
        "kalman_q_trend",
        "kalman_r",
        "kalman_min_points",
        "prophet_window_size",
        "load_scaling_down_sensitivity",
        "load_min_observations",
        "fpm_sample_bucket_size",
        "prefill_scale_up_queue_tokens",
        "prefill_scale_down_queue_tokens",
        "decode_scale_up_kv_rate",
        "decode_scale_down_kv_rate",
        "speculative_nextn",
        "profile_results_dir",
        "aic_interpolation",
    }
)
DEFAULTS = {"load_predictor": "arima"}

BOTH, OLD, NEW = "1.4.2, 1.6.1", "1.4.2", "1.6.1"
# Versions of the reference that know a shared key, where it is not both.
VERSIONS = {
    "prefill_min_endpoint": NEW,
    "decode_min_endpoint": NEW,
    "max_throughput_scaling_replicas": NEW,
}

# What the reference does where the same key is not given, and why we do something else.
DIFFERENCES = {
    "load_predictor": ("arima", "on recorded traffic it was further off than the last value"),
    "capacity_policy": ("reference", "the reference's one replica at a time is too slow for bursts"),
}

# Flags of the planner of Dynamo 0.4, and what says the same now.
RETIRED = {
    "adjustment_interval": "throughput_adjustment_interval_seconds",
    "no_operation": "advisory: true",
    "load_prediction_window_size": "prophet_window_size",
    "prometheus_port": "metrics: {port: ...}",
    "isl": "nothing: lengths are observed",
    "osl": "nothing: lengths are observed",
}

Text = str | None
Port = Annotated[int, Meta(ge=0, le=65_535)]
Hours = Annotated[float, Meta(gt=0.0, le=1e6)]
Samples = Annotated[int, Meta(ge=1)]
Section = dict[str, Any]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Gateway(_Struct, frozen=True, kw_only=True):
    enabled: bool = False
    listen: str = "unix:///var/run/dynamo/planner/registry.sock"
    allow_insecure: bool = False


class Auth(_Struct, frozen=True, kw_only=True):
    trusted_sources: list[str] = []
    static_secrets: dict[str, str] = {}


class Transport(_Struct, frozen=True, kw_only=True):
    allow_insecure_grpc: bool = False
    request_timeout_seconds: float = 5.0
    keepalive_time_ms: int = 30_000
    max_message_size_bytes: int = 10 * 1024 * 1024


class Admin(_Struct, frozen=True, kw_only=True):
    mode: str = "allow_all"


class PluginRegistration(_Struct, frozen=True, kw_only=True):
    auth: Auth = Auth()
    transport: Transport = Transport()
    protocol_version_min: str = "1.0"
    protocol_version_max: str = "1.0"
    heartbeat_timeout_seconds: float = 15.0
    heartbeat_missed_threshold: int = 2
    in_process_plugins: list[Section] = []
    admin: Admin = Admin()


@dataclass(frozen=True, slots=True)
class ReferenceKey:
    """A key that is accepted. `default` is the reference's, without its environment variables; `here` says what stands
    in its place. `refused` says of a value why it cannot be ignored, or None."""

    kind: Any
    default: Any
    here: str
    versions: str = BOTH
    refused: Callable[[Any], str | None] = lambda _: None


def _no_pool(environment: str) -> str | None:
    if environment != "global-planner":
        return None
    return "the budget that several deployments share is not kept here: give each its own max_gpu_budget"


def _no_power(enabled: bool) -> str | None:
    return "power is not budgeted here: give max_gpu_budget, in GPUs, that the power allows" if enabled else None


def _no_plugins(what: Any) -> str | None:
    if isinstance(what, Gateway):
        found = what.enabled
    else:
        found = bool(what.in_process_plugins if isinstance(what, PluginRegistration) else what)
    return "its plugins would not be asked: let them publish proposals on the bus, and take it out" if found else None


_PROMETHEUS = "traffic comes from sources.frontend, which scrapes the frontends"
_LEARNED = "engine speed is learned while it runs; beforehand it comes from aic_interpolation or profile_results_dir"
_REPORTS = "the ticks stream holds every report"

REFERENCE_KEYS: Mapping[str, ReferenceKey] = {
    "environment": ReferenceKey(
        Literal["kubernetes", "virtual", "global-planner"],
        "kubernetes",
        "sources say which workers there are, and an executor carries decisions out; a budget that deployments share "
        "(`global-planner`) is refused",
        refused=_no_pool,
    ),
    "namespace": ReferenceKey(str, "dynamo", "used as sources.dynamo_fpm.namespace where that is not given"),
    "backend": ReferenceKey(
        Literal["vllm", "sglang", "trtllm", "mocker"],
        "vllm",
        "components are called prefill and backend with every backend; others belong to sources.dynamo_fpm.components",
    ),
    "model_name": ReferenceKey(Text, None, "used as sources.frontend.model where that is not given"),
    "global_planner_namespace": ReferenceKey(Text, None, "decisions are on a topic for anyone to read"),
    "log_dir": ReferenceKey(Text, None, "logs go to standard error"),
    "pre_deployment_sweeping_mode": ReferenceKey(Literal["none", "rapid", "thorough"] | None, "rapid", _LEARNED),
    "max_num_fpm_samples": ReferenceKey(
        Samples, 64, "engine speed is learned from all iterations, in memory of fixed size"
    ),
    "aic_perf_model": ReferenceKey(Section | None, None, _LEARNED, OLD),
    "ais_perf_model": ReferenceKey(Section | None, None, _LEARNED, NEW),
    "throughput_metrics_source": ReferenceKey(Literal["frontend", "router"], "frontend", _PROMETHEUS),
    "metric_pulling_prometheus_endpoint": ReferenceKey(
        str, "http://prometheus-kube-prometheus-prometheus.monitoring.svc.cluster.local:9090", _PROMETHEUS
    ),
    "metric_pulling_prometheus_token": ReferenceKey(Text, None, _PROMETHEUS),
    "metric_pulling_prometheus_token_file": ReferenceKey(Text, None, _PROMETHEUS),
    "metric_pulling_prometheus_ssl_verify": ReferenceKey(bool, False, _PROMETHEUS),
    "metric_pulling_prometheus_extra_query_params": ReferenceKey(dict[str, str] | None, None, _PROMETHEUS),
    "metric_pulling_prometheus_ca_bundle": ReferenceKey(Text, None, _PROMETHEUS),
    "metric_pulling_prometheus_request_timeout_seconds": ReferenceKey(
        Annotated[float, Meta(gt=0.0)], 10.0, _PROMETHEUS, NEW
    ),
    "metric_reporting_prometheus_port": ReferenceKey(Port, 0, "used as metrics.port where that is not given"),
    "report_interval_hours": ReferenceKey(Hours | None, 24.0, _REPORTS),
    "report_output_dir": ReferenceKey(str, "./planner_reports", _REPORTS),
    "report_filename": ReferenceKey(Text, None, _REPORTS),
    "report_write_gzip_log": ReferenceKey(bool, True, _REPORTS),
    "live_dashboard_port": ReferenceKey(Port, 8080, f"there is no page to serve: {_REPORTS}"),
    "control_api_port": ReferenceKey(Port, 9086, "publish a configuration revision on the config stream", NEW),
    "enable_power_awareness": ReferenceKey(bool, False, "power is not budgeted, so `true` is refused", NEW, _no_power),
    "total_gpu_power_limit": ReferenceKey(
        Annotated[int, Meta(ge=1)] | None, None, "read with enable_power_awareness alone", NEW
    ),
    "scheduling.external_plugins": ReferenceKey(
        list[Section],
        [],
        "proposers publish on the bus and register nowhere; any entry is refused",
        refused=_no_plugins,
    ),
    "scheduling.gateway": ReferenceKey(
        Gateway, Gateway(), "proposers publish on the bus; `enabled: true` is refused", refused=_no_plugins
    ),
    "plugin_registration": ReferenceKey(
        PluginRegistration,
        PluginRegistration(),
        "the bus says who may publish proposals; any of in_process_plugins is refused",
        refused=_no_plugins,
    ),
}


def split(raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(keys of ours, keys that the reference alone has), as they were given; those of `scheduling` by dotted names."""
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for key, value in raw.items():
        (theirs if key in REFERENCE_KEYS else ours)[key] = value
    scheduling = ours.get("scheduling")
    if isinstance(scheduling, Mapping):
        dotted = {f"scheduling.{name}": (name, value) for name, value in scheduling.items()}
        theirs |= {key: value for key, (_, value) in dotted.items() if key in REFERENCE_KEYS}
        ours["scheduling"] = {name: value for key, (name, value) in dotted.items() if key not in REFERENCE_KEYS}
    return ours, theirs


def accepted(theirs: Mapping[str, Any], *, advisory: bool = False) -> dict[str, Any]:
    """The values of the reference's own keys, checked as the reference does.

    Raises ConfigError for a value of the wrong kind, and for one that must not be ignored by a planner that decides.
    """
    found: dict[str, Any] = {}
    for name, value in theirs.items():
        key = REFERENCE_KEYS[name]
        try:
            found[name] = msgspec.convert(value, key.kind, strict=False)
        except msgspec.ValidationError as e:
            raise ConfigError(_wrong(name, key, str(e))) from e
        why = None if advisory else key.refused(found[name])
        if why is not None:
            raise ConfigError(f"{name}: {why} (with `advisory: true` it would be ignored)")
    return found


def _wrong(name: str, key: ReferenceKey, message: str) -> str:
    """msgspec's message, with the whole path, and what would do where there is a choice."""
    message, _, inner = message.partition(" - at `$")
    choices = ", ".join(str(choice) for choice in get_args(key.kind)) if get_origin(key.kind) is Literal else ""
    return f"{message} - at `$.{name}{inner or '`'}" + (f"; it may be {choices}" if choices else "")
