"""`headrace demo`: see it plan."""

import click

from headrace.streams.cli.options import pairs


@click.command("demo")
@click.argument("trace", required=False, type=click.Path(exists=True, dir_okay=False, resolve_path=True))
@click.option(
    "--seconds",
    type=click.FloatRange(5, 36_000),
    default=120.0,
    show_default=True,
    help="How long the trace shall take.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key: --set itl_ms=20, --set simulator.preset=70b.",
)
def command(trace: str | None, seconds: float, sets: tuple[str, ...]) -> None:
    """Plan a simulated hour in about two minutes, and watch.

    Starts a bus of its own, a simulated deployment, the planner and an executor as separate processes that talk over
    the bus alone; shows load, forecast, replicas, latencies and decisions while they work; closes with goodput and
    GPU-hours beside the best fixed fleet. Everything is gone when it ends.

    TRACE is an Azure CSV or a Mooncake JSONL; without one the load has the shape of a busy hour.

    \b
    headrace demo
    headrace demo azure.csv --set simulator.overlay=3
    """
    from rich.console import Console

    from headrace.streams.cli.connect import run_until_stopped
    from headrace.streams.demo.run import Demo

    overrides: dict[str, object] = {}
    for name, value in pairs(sets).items():
        section, dot, key = name.partition(".")
        if dot:
            inner = overrides.setdefault(section, {})
            assert isinstance(inner, dict)
            inner[key] = value
        else:
            overrides[name] = value
    demo = Demo(trace, seconds, overrides, Console())
    run_until_stopped(demo.run)
