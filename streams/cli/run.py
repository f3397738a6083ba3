"""`headrace run`: the planner of one DGD with its sources, on a bus."""

import click

from headrace.streams.cli.options import Where, where_options


@click.command("run")
@where_options
@click.option(
    "--advisory", is_flag=True, help="Decide and say so, but mark every decision as advice: nobody acts on it."
)
@click.option("-v", "--verbose", is_flag=True, help="Log every tick, not only decisions and trouble.")
def command(where: Where, advisory: bool, verbose: bool) -> None:
    """Plan one DGD until stopped.

    Reads FPMs, traffic and inventory from the streams (and feeds them from the sources that the configuration names),
    writes decisions, and waits for their acks. State survives: stop it, start it again, and ids go on.

    With `sources.replay` the recorded input is planned at once, without a bus, and the records that come out are
    printed as JSON lines: the same recording gives the same bytes.

    \b
    headrace run -c planner.yaml --advisory          # watch what it would do
    headrace run -c planner.yaml --bus nats://nats:4222
    """
    from headrace.streams.cli.run_service import run

    run(where, advisory=advisory, verbose=verbose)
