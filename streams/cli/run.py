"""`headrace run`: the planners of DGDs with their sources, on a bus."""

import click

from headrace.streams.cli.options import Where, where_options


@click.command("run")
@where_options
@click.option(
    "--advisory", is_flag=True, help="Decide and say so, but mark every decision as advice: nobody acts on it."
)
@click.option("-v", "--verbose", is_flag=True, help="Log every tick, not only decisions and trouble.")
def command(where: Where, advisory: bool, verbose: bool) -> None:
    """Plan a DGD, or the part of many that falls to this process, until stopped.

    Reads FPMs, traffic and inventory from the streams (and feeds them from the sources that the configuration names),
    writes decisions, and waits for their acks. State survives: stop it, start it again, and ids go on.

    Start it on several machines with the same configuration: they share the DGDs that it names under `dgds`, and when
    one of them ends, the others take over what it had. `headrace shards` shows who plans what.

    With `sources.replay` the recorded input is planned at once, without a bus, and the records that come out are
    printed as JSON lines: the same recording gives the same bytes.

    \b
    headrace run -c planner.yaml --advisory          # watch what it would do
    headrace run -c planner.yaml --bus nats://nats:4222
    """
    from headrace.streams.cli.run_service import run

    run(where, advisory=advisory, verbose=verbose)
