"""What is legal in a configuration and still hardly meant."""

import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from headrace.schemas.config import ALIASES, FIELDS, PlannerConfig
from headrace.schemas.config_notes import config_notes
from headrace.streams.cli.connect import Client, kafka_options
from headrace.streams.settings import PREFIX, Settings

CORRECTION_KEYS = ("no_correction", "correction_most_growth")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OTHER_VARIABLES = ("DGD", "BUS_URL", "BUS_PREFIX", "CONFIG")


def warnings(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """One text per oddity."""
    named = {ALIASES.get(key, key) for key in settings.given}
    yield from config_notes(settings.planner, named, settings.reference)
    for look in (_scaling_range, _gpu_shapes, _profiles):
        yield from look(settings.planner)
    yield from _idle_keys(settings.planner, named)
    for part in (_inputs, _executor, _clock, _plain_text_secrets):
        yield from part(settings)
    yield from _misspelt_variables(environ)


def _scaling_range(c: PlannerConfig) -> Iterator[str]:
    if c.max_gpu_budget < 0:
        yield "max_gpu_budget is negative: there is no ceiling on GPUs"
    shapes = {role: c.engine_num_gpu(role) for role in c.roles}
    known = [gpus for gpus in shapes.values() if gpus is not None]
    if c.max_gpu_budget >= 0 and len(known) == len(shapes):
        least = sum(c.min_endpoint_of(role) * gpus for role, gpus in shapes.items() if gpus is not None)
        if c.max_gpu_budget < least + min(known):
            yield f"max_gpu_budget ({c.max_gpu_budget}) leaves no room above the least fleet ({least} GPUs): no growth"
    for role in c.roles:
        if c.min_endpoint_of(role) == 0:
            yield f"{role} may be scaled to zero: then the next request waits for a worker to start"
    if c.load_loop and c.load_scaling_down_sensitivity == 0 and c.optimization_target == "sla":
        yield "load_scaling_down_sensitivity is 0: the load loop never scales down"


def _gpu_shapes(c: PlannerConfig) -> Iterator[str]:
    if c.max_gpu_budget < 0 and c.min_gpu_budget < 0:
        return
    for role in c.roles:
        if c.engine_num_gpu(role) is None:
            key = "prefill_engine_num_gpu" if role == "prefill" else "decode_engine_num_gpu"
            yield (
                f"GPUs per {role} replica are unknown: scale-ups are refused (gpu_shape_unknown) unless the inventory "
                f"says gpus_per_replica; set {key}"
            )


def _profiles(c: PlannerConfig) -> Iterator[str]:
    folder = c.profile_results_dir
    if c.correction and c.aic_interpolation is None and not (folder and Path(folder).is_dir()):
        yield (
            f"capacity_policy 'correction' sizes from profiles, and profile_results_dir ({folder}) is no folder: both "
            "roles hold with model_not_ready until something publishes to profiles"
        )
    elif folder and folder != PlannerConfig().profile_results_dir and not Path(folder).is_dir():
        yield f"profile_results_dir ({folder}) is no folder here: it tells nothing of engine speed"
    for role, file in (c.benchmark_files or {}).items():
        if role in c.roles and not Path(file).is_file():
            yield f"benchmark_files: {file} of {role} is no file here: it tells nothing of engine speed"


def _idle_keys(c: PlannerConfig, named: Collection[str]) -> Iterator[str]:
    """Keys that somebody set and nothing reads."""
    found = [key for key in CORRECTION_KEYS if key in named and not c.correction]
    if found:
        yield f"{', '.join(found)} {_have(found)} no effect: capacity_policy is {c.capacity_policy!r}, not 'correction'"
    if c.optimization_target != "sla":
        why = f"optimization_target {c.optimization_target!r} has no SLA and no throughput loop; use 'sla' for both"
        idle = ["ttft_ms", "itl_ms", "throughput_adjustment_interval_seconds"]
        idle += ["enable_throughput_scaling"] if c.enable_throughput_scaling else []
    elif not c.throughput_loop:
        why, idle = "the throughput loop is off", ["throughput_adjustment_interval_seconds", "load_predictor"]
    elif not c.load_loop:
        why, idle = "the load loop is off", ["load_adjustment_interval_seconds", "load_scaling_down_sensitivity"]
    else:
        return
    found = [key for key in idle if key in named]
    if found:
        yield f"{', '.join(found)} {_have(found)} no effect: {why}"


def _have(keys: Collection[str]) -> str:
    return "has" if len(keys) == 1 else "have"


def _inputs(s: Settings) -> Iterator[str]:
    sources, c = s.edges.sources, s.planner
    if sources.replay is not None:
        live = [name for name in ("dynamo_fpm", "frontend") if getattr(sources, name) is not None]
        if live:
            yield f"sources.replay is given beside {', '.join(live)}: recorded and live input would mix; keep one"
        return
    if sources.inventory is None:
        yield (
            "no source of worker counts: every tick holds with no_inventory until something publishes to "
            "inventory; for a start, declare them as sources.inventory"
        )
    if sources.dynamo_fpm is None:
        yield "no source of FPMs: engines are unknown (no_fpm_data) until something publishes to fpm"
    if sources.frontend is None and c.throughput_loop:
        yield "no source of traffic: the throughput loop holds (no_traffic_data) until something publishes to traffic"
    if sources.frontend is not None and c.throughput_loop:
        scrape_s, loop_s = sources.frontend.interval_seconds, c.throughput_adjustment_interval_seconds
        if scrape_s > loop_s / 2:
            yield f"frontends are scraped every {scrape_s:g} s for a throughput loop of {loop_s:g} s: scrape more often"


def _executor(s: Settings) -> Iterator[str]:
    executor = s.edges.executor
    if executor is None:
        return
    if s.planner.advisory:
        yield "advisory is true and an executor is given: it has nothing to do, for nobody acts on an advisory decision"
    if executor.timeout_seconds > s.planner.ack_timeout_seconds:
        yield (
            f"executor.timeout_seconds ({executor.timeout_seconds:g}) is longer than ack_timeout_seconds "
            f"({s.planner.ack_timeout_seconds:g}): the planner goes on while the command still runs"
        )
    program = shlex.split(executor.exec)[0] if executor.exec else None
    if program is not None and shutil.which(program) is None:
        yield f"executor.exec: there is no program {program!r} here, or it cannot be executed"


def _clock(s: Settings) -> Iterator[str]:
    sources = s.edges.sources
    if s.edges.clock.speed != 1.0 and (sources.dynamo_fpm or sources.frontend):
        yield f"clock.speed is {s.edges.clock.speed:g} with live sources: only a simulated cluster runs on such a clock"


def _plain_text_secrets(s: Settings) -> Iterator[str]:
    bus = s.edges.bus
    parts = urlsplit(bus.url)
    secret = bus.password or bus.token or parts.username
    if parts.scheme == "nats" and parts.hostname not in _LOOPBACK and secret and not (bus.tls_ca or bus.tls_cert):
        yield f"bus: password or token go to {parts.hostname} in plain text where the server asks for no TLS; use tls://"
    if parts.scheme == "kafka" and secret and not kafka_options(bus, bus.url, Client()).encrypted:
        yield "bus: the password goes to Kafka without TLS; set bus.tls, or give bus.tls_ca"


def _misspelt_variables(environ: Mapping[str, str]) -> Iterator[str]:
    known = [PREFIX + name.upper() for name in (*FIELDS, *_OTHER_VARIABLES)]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.85)
            if near:
                yield f"the environment variable {name} means nothing; did you mean {near[0]}?"
