"""How `headrace run` is started, and what it says at the start."""

import json
import logging

import pytest

from headrace.streams.cli import run_service
from headrace.streams.cli.main import main
from headrace.streams.settings import load

OLD_COMMAND_LINE = {"optimization_target": "sla", "ttft": 0.5, "itl": 0.05, "backend": "vllm"}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was started, instead of starting it."""
    calls: list[object] = []
    monkeypatch.setattr(run_service, "run_until_stopped", calls.append)
    return calls


@pytest.mark.parametrize("start", [["run", "-c"], ["run", "--config"], ["--config"], ["-c"]], ids=" ".join)
def test_a_configuration_is_enough_to_start_the_planner(start: list[str], started: list[object]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*start, json.dumps(OLD_COMMAND_LINE)])
    assert ended.value.code == 0
    assert len(started) == 1


def test_an_equals_sign_will_do(started: list[object]) -> None:
    with pytest.raises(SystemExit):
        main([f"--config={json.dumps(OLD_COMMAND_LINE)}"])
    assert len(started) == 1


def test_what_is_odd_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="headrace"):
        run_service.say_oddities(load(json.dumps(OLD_COMMAND_LINE), environ={}))
    for said in (
        "ttft_ms is 0.5 milliseconds; if seconds were meant, write 500",
        "itl_ms is 0.05 milliseconds; if seconds were meant, write 50",
        "accepted without effect: backend",
        "load_predictor is 'auto' by default, where the reference does as with 'arima'",
        "no source of worker counts",
    ):
        assert said in caplog.text
