"""`headrace profile`: what a profiling sweep found."""

import click

from headrace.streams.cli.options import json_option


@click.group("profile")
def command() -> None:
    """Look at what was measured of engines before they serve.

    \b
    headrace profile show profiling_results
    """


@command.command("show")
@click.argument("directory", metavar="DIR")
@click.option(
    "--itl-ms",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MS",
    help="Also the best load of each context length within this ITL; in a pipe, only that.",
)
@click.option(
    "--scheme",
    type=click.Choice(["measured", "reference"]),
    default="measured",
    show_default=True,
    help="Between points: within what was measured, or as Dynamo 0.4.1.",
)
@click.option("--plot", "picture", metavar="FILE", help="Write the curves to FILE: PNG, SVG or PDF by its name.")
@json_option
def show(directory: str, itl_ms: float | None, scheme: str, picture: str | None, as_json: bool) -> None:
    """Show the profile in DIR: prefill by prompt length, decode by KV usage and context length.

    DIR holds selected_prefill_interpolation/raw_data.npz and selected_decode_interpolation/raw_data.npz, or
    prefill_raw_data.json and decode_raw_data.json; one of the two halves will do. Tables and curves on a terminal,
    tab-separated values in a pipe. Needs scipy, and --plot needs matplotlib: pip install headrace[profile].

    \b
    headrace profile show profiling_results
    headrace profile show profiling_results --itl-ms 20
    headrace profile show profiling_results --plot profile.png
    """
    from headrace.streams.cli.profile_show import Show, show_profile

    show_profile(Show(directory, itl_ms, "reference" if scheme == "reference" else "measured", picture, as_json))
