"""`headrace simulate`: a trace and a configuration on a virtual clock, beside fixed fleets and the lower bound."""

from typing import Any

import click

from headrace.schemas.errors import ConfigError
from headrace.streams.cli.options import pairs


@click.command("simulate")
@click.argument("trace", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("-c", "--config", "config_path", metavar="FILE", envvar="HEADRACE_CONFIG", help="Configuration file.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key, e.g. --set ttft_ms=300.")
@click.option("--overlay", type=click.IntRange(1, 1000), help="Copies of the trace laid over each other.")
@click.option("--preset", help="Engine: mocker, 8b, 70b.  [default: mocker]")
@click.option("--fleet", metavar="ROLE=N,...", help="Workers at the start, e.g. prefill=2,decode=2.")
@click.option("--startup-s", type=float, help="Seconds until a new worker serves.  [default: 30]")
@click.option("--seed", type=int, help="Of overlay jitter, worker ids and routing.")
@click.option("--static/--no-static", default=True, show_default=True, help="Also run fixed fleets to compare with.")
@click.option(
    "--fleets", type=click.IntRange(1, 500), default=12, show_default=True, help="Fixed fleets to try at most."
)
@click.option(
    "--live", is_flag=True, help="In real time on the configured bus: FPMs, /metrics, inventory, decisions carried out."
)
@click.option(
    "--speed", type=click.FloatRange(0.001, 10_000), help="With --live: how fast time runs.  [default: clock.speed]"
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    default=0,
    help="With --live: of the frontend page.  [default: any]",
)
@click.option("--metrics-address", default="127.0.0.1", show_default=True, help="With --live: where the page listens.")
@click.option(
    "--follow/--no-follow",
    default=True,
    show_default=True,
    help="With --live: carry out decisions; without, an executor asks for replicas on the bus.",
)
@click.option("--json", "as_json", is_flag=True, help="The whole report, with its timeline, as JSON.")
def command(
    trace: str | None,
    config_path: str | None,
    sets: tuple[str, ...],
    static: bool,
    fleets: int,
    live: bool,
    speed: float | None,
    metrics_port: int,
    metrics_address: str,
    follow: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Plan TRACE and say what came of it.

    TRACE is an Azure CSV (TIMESTAMP, ContextTokens, GeneratedTokens) or a Mooncake JSONL, plain or gzipped; without
    one, the load of the configuration's `simulator.load` is generated. Without a configuration, the
    plan is for TTFT 500 ms and ITL 50 ms; `--set capacity_policy=reference` moves one replica at a time.

    \b
    headrace simulate azure.csv --overlay 6 --set ttft_ms=300 --set itl_ms=9
    headrace simulate -c planner.yaml --json > report.json
    headrace simulate -c planner.yaml --live         # a deployment to try a planner on
    """
    flags["fleet"] = _fleet(flags["fleet"])
    flags["trace"] = trace
    overrides = pairs(sets)
    if live:
        from headrace.streams.cli.simulate_live import Page, run_live_command

        if speed is not None:
            overrides["clock.speed"] = speed
        run_live_command(config_path, overrides, flags, Page(metrics_address, metrics_port), follow=follow)
        return
    from headrace.streams.cli.simulate_run import Job, run_job

    job = Job.of(config_path, overrides, flags)
    run_job(job, fleets=fleets if static else 0, as_json=as_json)


def _fleet(text: str | None) -> dict[str, int] | None:
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(role.strip() and n.strip().isdecimal() for role, _, n in pairs):
        raise ConfigError(f"--fleet {text!r}: write ROLE=N,ROLE=N, for example prefill=2,decode=2")
    return {role.strip(): int(n) for role, _, n in pairs}
