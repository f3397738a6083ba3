"""`headrace forecast`: which forecaster would have done best on recorded load."""

import click


@click.group("forecast")
def command() -> None:
    """Judge forecasters on recorded load.

    \b
    headrace forecast evaluate azure.csv --interval 60 --horizon 180
    """


@command.command("evaluate")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE...")
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True, max=604_800),
    help="Seconds of a window.  [default: 60 for traces; rates are taken as they are]",
)
@click.option(
    "--horizon",
    type=click.FloatRange(min=0, min_open=True, max=604_800),
    multiple=True,
    help="Seconds ahead, e.g. until a new worker serves; may be repeated. One window is always shown.",
)
@click.option("--predictors", metavar="NAME,...", help="Which to judge.  [default: all that are installed]")
@click.option("--log1p", is_flag=True, help="They forecast log(1 + value), as with load_predictor_log1p.")
@click.option("--newest", type=click.IntRange(min=3), help="Only the newest windows of each file.")
@click.option("--refit-every", type=click.IntRange(min=1), default=1, show_default=True,
              help="Windows between fits of arima and prophet: slow ones get faster.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE.png", help="Draw load and forecasts.")
@click.option("--json", "as_json", is_flag=True, help="All scores as JSON.")
def evaluate(
    files: tuple[str, ...],
    interval: float | None,
    horizon: tuple[float, ...],
    predictors: str | None,
    log1p: bool,
    newest: int | None,
    refit_every: int,
    plot: str | None,
    as_json: bool,
) -> None:
    """Replay the request rate of each FILE to every forecaster, and recommend one.

    FILE is a CSV of rates (window_start_s,requests_per_s), an Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens) or a
    Mooncake JSONL, plain or gzipped. Each forecast is made from the windows before it alone. MAE is the mean absolute
    error in requests per second, WAPE the sum of errors over the sum of load, "vs last" the error over that of the last
    value: below 1 is better than no forecaster at all.

    \b
    headrace forecast evaluate azure.csv --interval 60 --horizon 180
    headrace forecast evaluate rates.csv --predictors auto,seasonal --plot rates.png
    """
    from headrace.streams.cli.forecast_evaluate import Evaluation, evaluate_files

    names = None if predictors is None else tuple(name.strip() for name in predictors.split(","))
    evaluate_files(Evaluation(files, interval, horizon, names, log1p, newest, refit_every, plot, as_json))
