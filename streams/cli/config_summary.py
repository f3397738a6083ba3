"""What would run with a configuration, in a few lines for people."""

from collections.abc import Iterator

from headrace.schemas.config import PlannerConfig
from headrace.streams.cli.config import without_userinfo
from headrace.streams.cli.connect import store_of
from headrace.streams.fleet import Fleet
from headrace.streams.settings import BusSettings, ExecutorSettings, Settings

FEW = 5  # DGDs that are named one by one


def summary(settings: Settings) -> Iterator[tuple[str, str]]:
    """Pairs of a heading and what to say under it."""
    planner, edges = settings.planner, settings.edges
    advisory = "; advisory: decisions are published and nobody shall act on them" if planner.advisory else ""
    yield "plans", f"{whom(Fleet.of(settings))}, mode {planner.mode}: {', '.join(planner.roles)}{advisory}"
    yield "target", _target(planner)
    yield "loops", f"{' and '.join(_loops(planner))}; base tick {planner.base_tick_seconds:g} s"
    yield "budget", _budget(planner)
    yield "bus", _bus(edges.bus)
    yield "sources", "; ".join(_sources(settings)) or "none here: others write to fpm, traffic and inventory"
    yield "executor", _executor(edges.executor)
    if edges.metrics.port:
        yield "metrics", f"http://{edges.metrics.address}:{edges.metrics.port}/metrics"
    if edges.clock.speed != 1.0:
        yield "clock", f"{edges.clock.speed:g} times the wall clock"


def whom(fleet: Fleet) -> str:
    """DGDs by name, as long as there are few, and patterns."""
    names = list(fleet.names) if len(fleet.names) <= FEW else [f"{len(fleet.names)} DGDs"]
    return ", ".join((*names, *fleet.patterns))


def _target(c: PlannerConfig) -> str:
    if c.optimization_target == "sla":
        return f"sla: TTFT {c.ttft_ms:g} ms, ITL {c.itl_ms:g} ms"
    return f"{c.optimization_target}: thresholds on queued tokens and KV use, no SLA"


def _loops(c: PlannerConfig) -> Iterator[str]:
    if c.throughput_loop:
        how = f"{c.load_predictor} forecast" + (", sized from corrected profiles" if c.correction else "")
        yield f"throughput every {c.throughput_adjustment_interval_seconds:g} s ({how})"
    if c.load_loop:
        yield f"load every {c.load_adjustment_interval_seconds:g} s"


def _budget(c: PlannerConfig) -> str:
    most = "no ceiling" if c.max_gpu_budget < 0 else f"at most {c.max_gpu_budget} GPUs"
    least = "" if c.min_gpu_budget < 0 else f", at least {c.min_gpu_budget}"
    roles = (f"{role} {_gpus(c.engine_num_gpu(role))} each, at least {c.min_endpoint_of(role)}" for role in c.roles)
    return f"{most}{least}; {'; '.join(roles)}"


def _gpus(n: int | None) -> str:
    return "unknown GPUs" if n is None else f"{n} GPU{'' if n == 1 else 's'}"


def _bus(bus: BusSettings) -> str:
    store = store_of(bus)
    where = without_userinfo(bus.url) if store is None else f"embedded nats-server, store {store}"
    return f"{where}, prefix {bus.prefix}"


def _sources(settings: Settings) -> Iterator[str]:
    s = settings.edges.sources
    if s.dynamo_fpm is not None:
        where = "the bus's server" if s.dynamo_fpm.url is None else without_userinfo(s.dynamo_fpm.url)
        many = s.dynamo_fpm.namespace is None and Fleet.of(settings).alone is None
        namespace = "that each DGD's name is" if many else settings.dynamo_namespace
        yield f"FPM events of Dynamo's namespace {namespace} on {where}"
    if s.frontend is not None:
        urls = ", ".join(without_userinfo(url) for url in s.frontend.urls)
        yield f"frontends {urls} every {s.frontend.interval_seconds:g} s"
    if s.inventory is not None:
        yield f"declared inventory {', '.join(f'{role} {n}' for role, n in sorted(s.inventory.items()))}"
    if s.replay is not None:
        yield f"recordings {', '.join(path for path in (s.replay.fpm, s.replay.metrics) if path)}"


def _executor(e: ExecutorSettings | None) -> str:
    if e is None:
        return "none here: others follow the decisions and acknowledge them"
    if e.exec is None:
        return "dry run: says what it would do"
    return f"{e.exec!r} for each decision, up to {e.timeout_seconds:g} s"
