"""What every test may ask for, and the rule for tests that cannot run.

On a developer's machine such a test is skipped, with its reason and a count at the end. Where CI=true it fails, unless
the one thing that is missing is the shared folder (captures, traces, vectors), which is not part of the repository.
"""

import os
import re
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from kafka_support import KafkaCluster

# How properties are tried: no deadline (the machine may be busy), and the same examples on every run.
settings.register_profile("headrace", deadline=None, derandomize=True)
settings.load_profile("headrace")

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
MAY_BE_ABSENT = re.compile(r"\bshared\b", re.IGNORECASE)

Report = pytest.TestReport | pytest.CollectReport


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of captures, traces and vectors beside the repository; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no shared folder beside the repository")
    return SHARED


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator["KafkaCluster"]:
    """A Kafka broker for all tests that only need one; each uses a bus prefix of its own there."""
    from kafka_support import kafka_server

    with kafka_server(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def reason_of(report: Report) -> str:
    """Why a test was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return " ".join(report.longrepr[2].removeprefix("Skipped: ").split())
    return str(report.longrepr)


def is_skip(report: Report) -> bool:
    return report.outcome == "skipped" and not hasattr(report, "wasxfail")


def may_skip(reason: str) -> bool:
    """Is this skip allowed in CI? Only the shared folder may be absent, and only if it is."""
    return not SHARED.is_dir() and MAY_BE_ABSENT.search(reason) is not None


def refuse_silent_skip(report: Report) -> None:
    """In CI, turn a skip into a failure that says what was missing."""
    if IN_CI and is_skip(report) and not may_skip(reason_of(report)):
        report.longrepr = f"{report.nodeid} could not run: {reason_of(report)}. In CI nothing is skipped."
        report.outcome = "failed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_silent_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_silent_skip(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests that could not run, by reason."""
    reasons = Counter(reason_of(report) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("could not run")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5d}  {reason}")
