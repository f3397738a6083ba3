"""What `headrace run` does; imported only when it runs."""

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING

from rich.logging import RichHandler

from headrace.schemas.base import Record
from headrace.schemas.codec import encode
from headrace.schemas.decision import Decision
from headrace.schemas.streams import STREAMS
from headrace.schemas.tick_report import TickReport
from headrace.streams.cli.config import check_parts
from headrace.streams.cli.config_summary import whom
from headrace.streams.cli.config_warnings import warnings
from headrace.streams.cli.connect import Client, open_bus, run_until_stopped
from headrace.streams.cli.options import Where
from headrace.streams.fleet import Fleet
from headrace.streams.runtime.clock import ScaledClock
from headrace.streams.runtime.groups import run_together
from headrace.streams.runtime.metrics import PlannerMetrics
from headrace.streams.settings import ClockSettings, MetricsSettings, Settings, load

if TYPE_CHECKING:
    from headrace.streams.runtime.health import Health

log = logging.getLogger("headrace")

LONGEST_STOP_S = 10.0  # more than what the service takes for its own stop


def run(where: Where, *, advisory: bool, verbose: bool) -> None:
    overrides = {
        **where.sets,
        **({"bus.url": where.bus} if where.bus else {}),
        **({"dgd": where.dgd} if where.dgd else {}),
    }
    settings = load(where.config, overrides={**overrides, **({"advisory": True} if advisory else {})})
    check_parts(settings)
    logs(verbose)
    if settings.edges.sources.replay is not None:
        say_oddities(settings)
        _replay(settings)
        return
    run_until_stopped(lambda stop: _serve(settings, stop))


def logs(verbose: bool = False) -> None:
    """Logs on stderr: with colours for a person, one plain line each for a machine."""
    if sys.stderr.isatty():
        logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[RichHandler(show_path=False)])
    else:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells every try; the bus tells what it means


def clock_of(s: ClockSettings) -> ScaledClock:
    """The clock of a configuration; with the defaults the wall clock."""
    wall = s.wall_origin if s.wall_origin is not None else (s.origin or 0.0)
    return ScaledClock(s.speed, wall if s.origin is None else s.origin, wall)


async def _serve(settings: Settings, stop: asyncio.Event) -> None:
    from headrace.streams.runtime.health import Health
    from headrace.streams.runtime.service import Service

    clock = clock_of(settings.edges.clock)
    async with open_bus(settings, Client("planner", serve=True, clock=clock.now)) as records:
        await records.bus.ensure(STREAMS.values())
        _banner(settings, records.bus)
        say_oddities(settings)
        metrics = PlannerMetrics()

        def on_tick(said: list[Record]) -> None:
            metrics.take(said)
            _say(said)

        service = Service(settings, records, clock, on_tick, metrics.forget)
        health = Health(service)
        metrics.registry.register(health)
        _pages(settings.edges.metrics, metrics, health)
        await run_together([service.run(stop), health.run(stop)], stop, LONGEST_STOP_S)


def _pages(s: MetricsSettings, metrics: PlannerMetrics, health: "Health") -> None:
    if s.port:
        metrics.serve(s.port, s.address, {"/livez": health.alive, "/readyz": health.ready})
        log.info("metrics on http://%s:%d/metrics, health on /livez and /readyz", s.address, s.port)


def _banner(settings: Settings, bus: object) -> None:
    planner, edges = settings.planner, settings.edges
    loops = [name for name, on in (("throughput", planner.throughput_loop), ("load", planner.load_loop)) if on]
    where = getattr(getattr(bus, "options", None), "address", edges.bus.url)
    log.info(
        "%s: mode %s, target %s, loops %s, a tick every %g s%s; bus %s",
        whom(Fleet.of(settings)),
        planner.mode,
        planner.optimization_target,
        " and ".join(loops),
        planner.base_tick_seconds,
        ", advisory" if planner.advisory else "",
        where,
    )


def say_oddities(settings: Settings) -> None:
    """What an operator should hear before the first tick; a start that fails says only why."""
    for text in warnings(settings, os.environ):
        log.warning("%s", text)


def _say(records: list[Record]) -> None:
    """One line per decision; with --verbose one per tick."""
    for record in records:
        if isinstance(record, Decision):
            moves = ", ".join(
                f"{role} {record.previous.get(role, '?')} -> {n} ({record.reasons.get(role, '')})"
                for role, n in sorted(record.targets.items())
            )
            log.info(
                "%s: decision %d%s: %s", record.dgd, record.decision_id, " (advisory)" if record.advisory else "", moves
            )
        elif isinstance(record, TickReport):
            for note in record.notes:
                log.debug("%s: tick %d: %s", record.dgd, record.tick, note)
            reasons = ", ".join(f"{role} {r.current} {r.reason}" for role, r in sorted(record.roles.items()))
            log.debug("%s: tick %d: %s", record.dgd, record.tick, reasons)


def _replay(settings: Settings) -> None:
    from headrace.streams.runtime.fit_worker import quiet
    from headrace.streams.runtime.replay import replay

    quiet()  # forecasters fit in this process
    counts: dict[str, int] = {}
    for _, record in replay(settings):
        name = type(record).__name__
        counts[name] = counts.get(name, 0) + 1
        sys.stdout.buffer.write(encode(record) + b"\n")
    sys.stdout.buffer.flush()
    log.info("replayed: %s", ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
