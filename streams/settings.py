"""One configuration file: the planner's keys at the top level, as in the reference, and a section for each edge.

Order of precedence: flags, then environment (`HEADRACE_BUS_URL`, `HEADRACE_DGD`, `HEADRACE_<PLANNER_KEY>`,
`PLANNER_PROMETHEUS_PORT`), then the file.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from headrace.schemas.aic import AicSpec, Pick
from headrace.schemas.base import Count, DgdName, Role
from headrace.schemas.config import ALIASES, FIELDS, PlannerConfig, Scheduling, planner_config, unknown_key
from headrace.schemas.config_reference import (
    REFERENCE_KEYS,
    Auth,
    Gateway,
    PluginRegistration,
    Transport,
    accepted,
    split,
)
from headrace.schemas.errors import ConfigError
from headrace.streams.settings_file import read_file

PREFIX = "HEADRACE_"
DEFAULT_DGD = "default/main"
Positive = Annotated[float, Meta(gt=0.0, le=86_400.0)]
AtLeastOne = Annotated[int, Meta(ge=1, le=10_000)]


class BusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which bus. `url`: "embedded" (own nats-server, the default), or the nats://, tls:// or kafka:// that exists."""

    url: str = "embedded"
    prefix: str = "headrace"
    store: str = ".headrace/nats"  # of the embedded server
    port: int | None = None  # of the embedded server; default: any free one
    credentials: str | None = None  # path of a .creds file
    nkey_seed: str | None = None  # path of a file with the seed
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls: bool | None = None  # encrypt, with the system's authorities where tls_ca is not given
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None  # Kafka: with user and password
    partitions: AtLeastOne | None = None  # Kafka: of topics that are created
    replicas: AtLeastOne | None = None  # copies of a topic or stream that is created


class DynamoFpmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dynamo's FPM event plane on core NATS (`DYN_EVENT_PLANE=nats` on workers and frontends)."""

    url: str | None = None  # default: the bus's own server
    namespace: str | None = None  # Dynamo namespace; default: DYN_NAMESPACE, else the DGD's name
    components: dict[str, Role] | None = None  # default: prefill -> prefill, backend -> decode (agg in mode agg)
    flush_seconds: Positive = 0.02


class FrontendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frontends whose `/metrics` are scraped."""

    urls: list[str]
    interval_seconds: Positive = 5.0
    timeout_seconds: Positive = 4.0
    model: str | None = None  # default: all models of the frontends


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recorded input instead of live input."""

    fpm: str | None = None  # jsonl.gz of an event-plane capture
    metrics: str | None = None  # folder of scrapes


class SourceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dynamo_fpm: DynamoFpmSettings | None = None
    frontend: FrontendSettings | None = None
    inventory: dict[Role, Count] | None = None  # declared counts, where no orchestrator says
    replay: ReplaySettings | None = None


class ExecutorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An executor inside `headrace run`; without one, decisions are for whoever follows the topic."""

    exec: str | None = None  # a command per decision
    dry_run: bool = False
    timeout_seconds: Positive = 600.0


class ClockSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A clock that runs faster than the wall, for simulations on a real bus."""

    speed: Positive = 1.0
    origin: float | None = None  # seconds; default: the wall clock
    wall_origin: float | None = None


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The planner's own `/metrics`; port 0 = none. PLANNER_PROMETHEUS_PORT sets the port, as in the reference."""

    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    address: str = "127.0.0.1"


class ShardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How processes with one configuration share its DGDs. All of them must have the same values."""

    partitions: Annotated[int, Meta(ge=1, le=4096)] = 64
    lease_seconds: Annotated[float, Meta(ge=0.5, le=300.0)] = 3.0  # of silence, after which others take over
    group: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)")] | None = None  # default: by the DGDs


class Edges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dgd: DgdName = DEFAULT_DGD
    dgds: dict[str, dict[str, Any] | None] = {}  # more of them: name or pattern -> what differs from the top
    shards: ShardSettings = ShardSettings()
    bus: BusSettings = BusSettings()
    sources: SourceSettings = SourceSettings()
    executor: ExecutorSettings | None = None
    clock: ClockSettings = ClockSettings()
    metrics: MetricsSettings = MetricsSettings()
    simulator: dict[str, Any] | None = None  # read by `headrace simulate` and `headrace demo`


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    planner: PlannerConfig
    edges: Edges
    path: str | None = None
    reference: Mapping[str, Any] = {}  # keys that the reference alone has, as they were given
    given: frozenset[str] = frozenset()  # keys that file, environment and flags set at the top level

    @property
    def dynamo_namespace(self) -> str:
        """Dynamo's namespace of the DGD: as configured, else DYN_NAMESPACE, else the DGD's own name."""
        fpm = self.edges.sources.dynamo_fpm
        configured = (fpm.namespace if fpm else None) or self.reference.get("namespace")
        return configured or os.environ.get("DYN_NAMESPACE") or self.edges.dgd.partition("/")[2]


SECTIONS = tuple(f.name for f in msgspec.structs.fields(Edges))


def settings(raw: Mapping[str, Any], path: str | None = None) -> Settings:
    """Valid settings from one mapping. Raises ConfigError naming the key and the remedy."""
    where = f"{path}: " if path else ""
    known = (*FIELDS, *ALIASES, *SECTIONS, *REFERENCE_KEYS)
    for key in raw:
        if key not in known:
            raise ConfigError(where + unknown_key(key, known))
    named = {key: value for key, value in raw.items() if key in SECTIONS}
    if isinstance(named.get("bus"), str):
        named["bus"] = {"url": named["bus"]}
    if isinstance(named.get("dgds"), list):
        named["dgds"] = {str(name): {} for name in named["dgds"]}
    try:
        edges = msgspec.convert(named, Edges)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{where}{_plain(str(e), named)}") from e
    try:
        keys = {key: value for key, value in raw.items() if key not in SECTIONS}
        planner = planner_config(keys)
        theirs = accepted(split(keys)[1], advisory=planner.advisory)
        edges = _with_reference(edges, theirs)
        _check(edges, planner)
    except ConfigError as e:
        raise ConfigError(f"{where}{_plain(str(e), raw)}") from e
    return Settings(planner=planner, edges=edges, path=path, reference=theirs, given=frozenset(raw))


def _with_reference(edges: Edges, theirs: Mapping[str, Any]) -> Edges:
    """The edges, completed by what the reference says at the top level and they do not say themselves."""
    frontend, model = edges.sources.frontend, theirs.get("model_name")
    if frontend is not None and frontend.model is None and model:
        sources = msgspec.structs.replace(edges.sources, frontend=msgspec.structs.replace(frontend, model=model))
        edges = msgspec.structs.replace(edges, sources=sources)
    port = theirs.get("metric_reporting_prometheus_port")
    if port and not edges.metrics.port:
        edges = msgspec.structs.replace(edges, metrics=msgspec.structs.replace(edges.metrics, port=port))
    return edges


def load(
    path: str | None, *, overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Settings from a file (or none), the environment and flags. `overrides` uses dotted names: `bus.url`."""
    raw = read_file(path) if path else {}
    if isinstance(raw.get("bus"), str):
        raw["bus"] = {"url": raw["bus"]}
    for name, value in {**_from_environment(environ), **(overrides or {})}.items():
        put(raw, name, value)
    return settings(raw, path)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {f"{PREFIX}{field.upper()}": field for field in FIELDS}
    names |= {"PLANNER_PROMETHEUS_PORT": "metrics.port"}
    names |= {f"{PREFIX}DGD": "dgd", f"{PREFIX}BUS_URL": "bus.url", f"{PREFIX}BUS_PREFIX": "bus.prefix"}
    found = {}
    for key, value in environ.items():
        if key in names:
            try:
                found[names[key]] = yaml.safe_load(value)
            except yaml.YAMLError as e:
                raise ConfigError(f"environment variable {key} = {value!r} is not YAML: put it in quotes") from e
    return found


def put(raw: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a key in a raw configuration, under whichever of its spellings it stands there."""
    *sections, name = dotted.split(".")
    place = raw
    for section in sections:
        if place.get(section) is None:
            place[section] = {}
        place = place[section]
        if not isinstance(place, dict):
            raise ConfigError(f"{dotted}: {section} is no section, but {place!r}: remove that, or do not set {dotted}")
    for alias, real in ALIASES.items():  # a flag replaces the file's value under either spelling
        if not sections and real == ALIASES.get(name, name):
            place.pop(alias, None)
            place.pop(real, None)
    place[name] = value


def _check(edges: Edges, planner: PlannerConfig) -> None:
    declared = edges.sources.inventory or {}
    foreign = sorted(set(declared) - set(planner.roles))
    if foreign:
        raise ConfigError(
            f"sources.inventory names {', '.join(foreign)}, but mode {planner.mode!r} plans {', '.join(planner.roles)}"
        )
    components = (edges.sources.dynamo_fpm.components if edges.sources.dynamo_fpm else None) or {}
    foreign = sorted(set(components.values()) - set(planner.roles))
    if foreign:
        raise ConfigError(
            f"sources.dynamo_fpm.components maps to {', '.join(foreign)}, but mode {planner.mode!r} plans "
            f"{', '.join(planner.roles)}"
        )


def _plain(message: str, raw: Mapping[str, Any]) -> str:
    """msgspec's message, with the nearest known name when it is about an unknown field, and no pattern of a DGD."""
    if "matching regex" in message and message.endswith("`$.dgd`"):
        return f"dgd {raw['dgd']!r} is no name of a deployment: write NAMESPACE/NAME, for example ml/llama-70b"
    if "unknown field" not in message:
        return message
    wrong, path = message.split("`")[1], message.split("`$")[-1].rstrip("`").strip(".")
    kind = SECTION_STRUCTS.get(path)
    return (
        message if kind is None else f"{message}: {unknown_key(wrong, [f.name for f in msgspec.structs.fields(kind)])}"
    )


SECTION_STRUCTS: dict[str, type[msgspec.Struct]] = {
    "": Edges,
    "bus": BusSettings,
    "sources": SourceSettings,
    "sources.dynamo_fpm": DynamoFpmSettings,
    "sources.frontend": FrontendSettings,
    "sources.replay": ReplaySettings,
    "executor": ExecutorSettings,
    "clock": ClockSettings,
    "shards": ShardSettings,
    "metrics": MetricsSettings,
    "scheduling": Scheduling,
    "scheduling.gateway": Gateway,
    "plugin_registration": PluginRegistration,
    "plugin_registration.auth": Auth,
    "plugin_registration.transport": Transport,
    "aic_interpolation": AicSpec,
    "aic_interpolation.prefill_pick": Pick,
    "aic_interpolation.decode_pick": Pick,
}
