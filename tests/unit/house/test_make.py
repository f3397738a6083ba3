"""The commands that a reader types first."""

import os
import subprocess
from pathlib import Path

TARGETS = {"demo", "test", "check", "bench", "format", "lock", "clean", "help"}


def make(root: Path, *arguments: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    result = subprocess.run(["make", *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_make_alone_lists_what_it_can_do(root: Path) -> None:
    listed = {line.split()[1] for line in make(root).splitlines()}
    assert listed >= TARGETS


def test_demo_takes_a_trace(root: Path) -> None:
    assert 'headrace demo "my trace.jsonl"' in make(root, "-n", "demo", "TRACE=my trace.jsonl")


def test_an_interpreter_that_does_not_work_is_refused_with_the_remedy(root: Path, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    script = tmp_path / "tools/venv.sh"
    script.write_bytes((root / "tools/venv.sh").read_bytes())
    environment = {**os.environ, "PYTHON": "/bin/false"}
    result = subprocess.run(["sh", script, "dev"], env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert "error: no Python 3.11 or newer found at /bin/false" in result.stderr
    assert "make dev" not in result.stderr
    assert "PYTHON=/path/to/python3" in result.stderr


def test_the_scripts_are_programs_that_a_shell_can_read(root: Path) -> None:
    for shell, script in (("bash", ".ci/run"), ("sh", "tools/venv.sh"), ("sh", "tools/lock.sh")):
        assert os.access(root / script, os.X_OK), script
        assert subprocess.run([shell, "-n", root / script]).returncode == 0, script
