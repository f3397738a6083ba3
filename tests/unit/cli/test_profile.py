"""`headrace profile show`: points, curves, pictures."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.streams.cli import output
from headrace.streams.cli.chart import Axis, draw
from headrace.streams.cli.main import cli

PREFILL = {
    "prefill_isl": [100, 1000, 4000],
    "prefill_ttft": [10, 30, 120],
    "prefill_thpt_per_gpu": [10_000, 33_333, 33_333],
}
DECODE = {
    "x_kv_usage": [0.1, 0.5, 0.1, 0.5],
    "y_context_length": [500, 500, 2000, 2000],
    "z_itl": [5, 8, 6, 9],
    "z_thpt_per_gpu": [20_000, 62_500, 4166, 13_889],
    "max_kv_tokens": 500_000,
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "prefill_raw_data.json").write_text(json.dumps(PREFILL))
    (tmp_path / "decode_raw_data.json").write_text(json.dumps(DECODE))
    return tmp_path


def show(directory: Path, *args: str) -> Result:
    return CliRunner().invoke(cli, ["profile", "show", str(directory), *args])


def test_a_pipe_gets_every_point_as_tab_separated_values(profile: Path) -> None:
    lines = [line.split("\t") for line in show(profile).stdout.splitlines()]
    assert lines[0] == ["work", "tokens", "requests", "KV use", "ms", "tokens/s/GPU"]
    assert lines[2] == ["prefill", "1000", "-", "-", "30.00", "33333"]
    assert lines[5] == ["decode", "500", "500.0", "0.500", "8.00", "62500"]
    assert len(lines) == 1 + 3 + 4


def test_a_terminal_gets_curves_too(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    text = show(profile, "--itl-ms", "7").stdout
    assert "TTFT by prompt length" in text
    assert "ITL by KV usage, context of 500 tokens" in text
    assert "120 ms │" in text
    assert "meets ITL" in text


def test_the_best_load_within_an_itl_is_found_for_each_context(profile: Path) -> None:
    lines = [line.split("\t") for line in show(profile, "--itl-ms", "6.5").stdout.splitlines()]
    assert lines[0] == ["context", "requests", "KV use", "ITL ms", "tokens/s/GPU", "meets ITL"]
    context, requests, usage, itl, _, meets = lines[1]
    assert (context, meets) == ("500", "yes")
    assert float(usage) == pytest.approx(0.3, abs=0.005)
    assert float(requests) == pytest.approx(300, abs=5)
    assert float(itl) <= 6.5
    assert show(profile, "--itl-ms", "1").stdout.splitlines()[1].endswith("\tno")


def test_json_holds_the_columns_and_the_best_loads(profile: Path) -> None:
    found = json.loads(show(profile, "--json", "--itl-ms", "6.5").stdout)
    assert found["prefill"]["ttft_s"] == [0.01, 0.03, 0.12]
    assert found["decode"]["max_kv_tokens"] == 500_000
    assert [row["context_length"] for row in found["best"]] == [500, 2000]


def test_one_half_will_do(profile: Path) -> None:
    (profile / "decode_raw_data.json").unlink()
    result = show(profile, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["decode"] is None


def test_points_that_no_curve_goes_through_are_shown_and_said(profile: Path) -> None:
    result = show(profile, "--scheme", "reference")
    assert result.exit_code == 0
    assert "no curves: prefill profile: 3 prompt lengths are too few" in result.stderr
    assert len(result.stdout.splitlines()) == 8


@pytest.mark.parametrize("name", ["p.png", "p.svg"])
def test_a_picture_is_written_in_the_format_of_its_name(profile: Path, tmp_path: Path, name: str) -> None:
    result = show(profile, "--plot", str(tmp_path / name))
    assert result.exit_code == 0
    assert f"written: {tmp_path / name}" in result.stderr
    start = (tmp_path / name).read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if name.endswith("png") else start.startswith(b"<?xml")


@pytest.mark.parametrize("name", ["p.nonsense", "nowhere/p.png"])
def test_a_picture_that_cannot_be_written_is_an_error(profile: Path, tmp_path: Path, name: str) -> None:
    result = show(profile, "--plot", str(tmp_path / name))
    assert str(result.exception).startswith(f"--plot {tmp_path / name}: ")


def test_without_matplotlib_the_message_names_the_extra(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install headrace[profile]" in str(show(profile, "--plot", str(profile / "p.png")).exception)


def test_a_directory_without_a_profile_says_what_should_be_there(tmp_path: Path) -> None:
    assert "selected_prefill_interpolation/raw_data.npz" in str(show(tmp_path).exception)


def test_a_chart_has_its_highest_point_on_top_and_its_last_on_the_right() -> None:
    lines = draw([(0, 0), (10, 5)], Axis.of("s", [0, 10]), Axis.of("ms", [0, 5]), width=10, height=3)
    assert lines[0] == "5 ms │         ⠈"
    assert lines[2] == "     │⡀"
    assert lines[3] == "   0 └──────────"
    assert lines[4] == "      0 s     10"


def test_a_chart_of_one_value_is_drawn() -> None:
    assert draw([(1, 1)], Axis.of("x", [1]), Axis.of("y", [1]), width=2, height=1)[0] == "1 y │⡀"
