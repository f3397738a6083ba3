"""`headrace forecast evaluate`: files in, scores out, and a recommendation."""

import csv
import gzip
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.schemas.errors import ConfigError
from headrace.streams.cli.forecast_evaluate import Judged, recommendation, sparkline
from headrace.streams.cli.main import cli
from headrace.streams.runtime.recorded_load import Series, read_series


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    """Noise around a level, in windows of 600 s."""
    path = tmp_path / "rates.csv"
    rows = [f"{600 * n},{100 + 20 * math.sin(n * n)}" for n in range(120)]
    path.write_text("\n".join(["window_start_s,requests_per_s", *rows]) + "\n")
    return path


def evaluate(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, ["forecast", "evaluate", *map(str, args)], catch_exceptions=True)


def test_every_forecaster_is_judged_beside_the_last_value(rates: Path):
    done = evaluate(rates, "--predictors", "seasonal,auto", "--horizon", "1800", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(r["predictor"], r["horizon_s"]) for r in rows] == [
        (name, ahead) for name in ("constant", "seasonal", "auto") for ahead in (600.0, 1800.0)
    ]
    assert all(r["vs_last"] == 1.0 for r in rows if r["predictor"] == "constant")
    assert all(r["vs_last"] < 0.95 for r in rows if r["predictor"] != "constant")
    assert "recommended: load_predictor: " in done.stderr


def test_in_a_pipe_scores_are_tab_separated(rates: Path):
    lines = list(csv.reader(evaluate(rates, "--predictors", "kalman").stdout.splitlines(), delimiter="\t"))
    assert lines[0][:6] == ["SERIES", "AHEAD", "PREDICTOR", "MAE", "WAPE", "VS LAST"]
    assert [line[2] for line in lines[1:]] == ["constant", "kalman"]


def test_fitted_forecasters_are_judged_too(rates: Path):
    done = evaluate(rates, "--predictors", "arima,prophet", "--newest", "14", "--refit-every", "5", "--json")
    assert {r["predictor"]: r["windows"] for r in json.loads(done.stdout)} == {
        "constant": 13,
        "arima": 13,
        "prophet": 13,
    }


def test_a_picture_is_drawn(rates: Path, tmp_path: Path):
    done = evaluate(rates, rates, "--predictors", "auto", "--plot", tmp_path / "p.png")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "said"), [("p.txt", "end it in .png"), ("no/p.png", "no such folder")])
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(rates: Path, tmp_path: Path, name, said):
    with pytest.raises(ConfigError, match=said):
        raise evaluate(rates, "--plot", tmp_path / name).exception


def test_without_matplotlib_the_extra_is_named(rates: Path, monkeypatch):
    monkeypatch.setattr("headrace.models.forecast.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install headrace\[plot\]"):
        raise evaluate(rates, "--plot", "p.png").exception


def test_an_unknown_forecaster_is_refused(rates: Path):
    with pytest.raises(ConfigError, match="'oracle' is unknown"):
        raise evaluate(rates, "--predictors", "oracle").exception


def test_forecasters_that_are_not_installed_are_named_and_left_out(rates: Path, monkeypatch):
    monkeypatch.setattr("headrace.models.forecast.extras.find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "filterpy.kalman", None)
    done = evaluate(rates, "--json")
    assert {r["predictor"] for r in json.loads(done.stdout)} == {"constant", "seasonal", "auto"}
    assert done.stderr.count("not judged") == 3


def test_a_forecaster_that_fails_has_no_score_and_is_never_recommended(rates: Path, monkeypatch):  # dynamo#14513
    def fail(self: object, steps: int = 1) -> float:
        raise ValueError("no idea")

    monkeypatch.setattr("headrace.models.forecast.seasonal.Seasonal.forecast", fail)
    done = evaluate(rates, "--predictors", "seasonal", "--json")
    assert {r["predictor"]: r.get("failure") for r in json.loads(done.stdout)} == {
        "constant": None,
        "seasonal": "ValueError: no idea",
    }
    assert "load_predictor: constant" in done.stderr


def test_azure_and_mooncake_traces_are_binned_without_their_last_window(tmp_path: Path):
    azure = tmp_path / "azure.csv"
    times = ["18:00:00", "18:00:30.5", "18:03:00", "18:04:10"]
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2023-11-16 {t},9,9\n" for t in times))
    assert read_series(azure) == Series("azure", 60.0, (2 / 60, 0.0, 0.0, 1 / 60))
    mooncake = tmp_path / "m.jsonl.gz"
    rows = [{"timestamp": t, "input_length": 5, "output_length": 5} for t in (0, 9000, 11_000, 25_000)]
    mooncake.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert read_series(mooncake, 10.0) == Series("m", 10.0, (0.2, 0.1))


def test_rates_are_taken_as_they_are_or_in_multiples_of_their_windows(tmp_path: Path):
    path = tmp_path / "r.csv"
    path.write_text("window_start_s,requests_per_s\n0,1\n10,3\n20,5\n30,7\n40,9\n")
    assert read_series(path) == Series("r", 10.0, (1, 3, 5, 7, 9))
    assert read_series(path, 20.0) == Series("r", 20.0, (2, 6))
    with pytest.raises(ConfigError, match="must be a multiple"):
        read_series(path, 25.0)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,1\n10,x\n", ":3: .* not two numbers"),
        ("0,1\n10,2,3\n", ":3: .* not two numbers"),
        ("0,1\n10,-2\n", ":3: a rate is a finite number"),
        ("0,1\n10,nan\n", ":3: a rate is a finite number"),
        ("0,1\n10,2\n30,3\n", ":4: begins 20 s after"),
        ("0,1\n0,2\n", ":3: begins 0 s after"),
        ("0,1\n", "at least 2"),
    ],
)
def test_rates_that_cannot_be_right_are_refused(tmp_path: Path, rows: str, said: str):
    path = tmp_path / "r.csv"
    path.write_text("window_start_s,requests_per_s\n" + rows)
    with pytest.raises(ConfigError, match=said):
        read_series(path)


def test_a_trace_shorter_than_a_window_is_refused(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n')
    with pytest.raises(ConfigError, match="shorter --interval"):
        read_series(path)


def test_a_load_that_never_changes_has_no_best_forecaster():
    judged = [Judged("constant"), Judged("auto")]
    assert recommendation([(Series("s", 1.0, (1.0, 1.0)), judged)]).startswith("nothing to recommend")


@pytest.mark.parametrize(
    ("values", "bars"), [((0.0, 0.0), "▁▁"), ((5.0,), "█"), ((0.0, 7.0) * 60, "█" * 60), ((0.0, 3.5, 7.0), "▁▅█")]
)
def test_a_sparkline_is_as_high_as_the_load(values, bars):
    assert sparkline(values) == bars
