"""`headrace demo` without a terminal: what it shows, and that nothing of it is left, however it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from descendants import all_gone, marked, needs_proc

pytestmark = [pytest.mark.slow, needs_proc]

PARTS = ("headrace.streams.demo.child headrace run", "demo.executor", "demo.simulator", "nats-server -c")


class Demo:
    """The command under a mark of its own."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.mark = f"TMPDIR={folder}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "demo", *args],
            cwd=folder,
            env=kept | {"TMPDIR": str(folder), "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def child(self, part: str) -> int | None:
        return next((pid for pid, command in marked(self.mark).items() if part in command), None)

    def wait_for(self, condition: Callable[[], object], patience_s: float = 40.0) -> None:
        give_up = time.monotonic() + patience_s
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < give_up, marked(self.mark)
            time.sleep(0.1)

    def runs(self) -> None:
        """Wait until all parts are there, and the executor and the planner past their imports."""
        self.wait_for(lambda: all(self.child(part) for part in PARTS))
        folder = next(Path(self.mark.partition("=")[2]).glob("headrace-demo-*"))
        self.wait_for(lambda: "planning in epoch 1" in (folder / "planner.log").read_text())

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=100)
        return self.process.returncode, out, err


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*args: str) -> Demo:
        started.append(Demo(tmp_path, *args))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
    assert all_gone(f"TMPDIR={tmp_path}") == {}


def check_summary(out: str) -> None:
    for word in ("goodput", "GPU-hours", "Headrace", "fixed fleet", "requests", "both TTFT <= 500 ms"):
        assert word in out
    assert re.search(r"Headrace +│ +\d+\.\d% │ +\d+\.\d+ ", out)
    found = re.search(r"(\d+) decisions issued, (\d+) settled", " ".join(out.split()))
    assert found is not None
    issued, settled = int(found[1]), int(found[2])
    assert issued >= 1
    assert issued - settled in (0, 1)


@pytest.mark.timeout(240)
def test_a_demonstration_ends_with_its_summary_and_leaves_no_process(demo: Callable[..., Demo]) -> None:
    quarter = (
        "{shape: hour, duration_s: 900, requests_per_s: 3, peak_requests_per_s: 20, isl_mean: 2000, osl_mean: 400}"
    )
    code, out, err = demo("--seconds", "15", "--set", f"simulator.load={quarter}").ended()
    assert (code, err) == (0, "")
    check_summary(out)
    assert re.search(r"min: \d+\.\d requests/s; prefill \d", out)


def test_a_trace_is_planned_too(demo: Callable[..., Demo], tmp_path: Path) -> None:
    lines = [f"2026-01-01 10:{t // 60:02}:{t % 60:02}.{part}000000,2000,100" for t in range(300) for part in range(8)]
    trace = tmp_path / "busy.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    code, out, err = demo(str(trace), "--seconds", "8", "--set", "simulator.preset=70b", "--set", "ttft_ms=500").ended()
    assert (code, err) == (0, "")
    check_summary(out)
    assert "2400 requests" in out


def test_ctrl_c_ends_it_in_peace(demo: Callable[..., Demo]) -> None:
    running = demo("--seconds", "300")
    running.runs()
    running.process.send_signal(signal.SIGINT)
    code, out, err = running.ended()
    assert (code, err) == (0, "")
    assert "Stopped before the trace was through: no summary." in out
    assert all_gone(running.mark, patience_s=1.0) == {}


def test_a_kill_leaves_nothing_behind(demo: Callable[..., Demo]) -> None:
    running = demo("--seconds", "300")
    running.runs()
    assert len(marked(running.mark)) >= 6
    running.process.kill()
    running.process.communicate()
    assert all_gone(running.mark) == {}


def test_a_part_that_dies_ends_it_with_one_line(demo: Callable[..., Demo]) -> None:
    running = demo("--seconds", "300")
    running.runs()
    planner = running.child(PARTS[0])
    assert planner is not None
    os.kill(planner, signal.SIGKILL)
    code, _, err = running.ended()
    assert code == 1
    assert err.startswith("headrace: the planner process ended with status -9: ")
    assert err.count("\n") == 1


WORK = """
import sys
from headrace.connectors.simulator.config import from_preset
from headrace.connectors.simulator.loads import LoadSpec, generate
from headrace.streams.fixed_fleets import fixed_fleets
import signal
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
    trace = generate(LoadSpec(shape="hour", duration_s=7200, requests_per_s=50, peak_requests_per_s=50))
    config = from_preset("8b", {"prefill": 9, "decode": 9})
    def say(share):
        print(share, flush=True)
    fixed_fleets(trace, config, [{"prefill": 9, "decode": n} for n in range(5, 15)] * 5, say)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_processes_that_compute_fixed_fleets_end_with_the_one_that_asked(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "work.py"
    script.write_text(WORK)
    mark = f"HEADRACE_TEST_MARK={tmp_path}"
    name, _, value = mark.partition("=")
    process = subprocess.Popen(
        [sys.executable, script], env=os.environ | {name: value}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    assert len(marked(mark)) >= 2
    process.send_signal(number)
    process.communicate(timeout=30)
    assert all_gone(mark) == {}
