"""`headrace simulate` without a bus."""

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.streams.cli.main import cli


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Half a minute, two requests a second."""
    path = tmp_path / "small.csv"
    rows = [f"2026-01-01 10:00:{n // 2:02}.{5 * (n % 2)}000000,900,60" for n in range(60)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def test_libraries_of_forecasters_say_nothing_beside_the_report(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cmdstanpy", "prophet.plot"):  # as they are in a new process
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    done = CliRunner().invoke(
        cli, ["simulate", str(trace), "--no-static", "--set", "load_predictor=constant", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["report"]["finished"] == 60
    assert done.stderr == ""
    assert not logging.getLogger("cmdstanpy").propagate
    assert not logging.getLogger("prophet.plot").propagate
