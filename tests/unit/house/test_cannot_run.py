"""A test that cannot run says why and is counted; in CI it fails, unless only the shared folder is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = """
import pytest

def test_that_runs(): pass

@pytest.mark.skip(reason="no browser is installed")
def test_by_mark(): pass

def test_by_call(): pytest.skip("no broker is installed")
"""
SHARED = """
def test_captures(shared): pass
def test_traces(shared): pass
"""
MODULE = """
import pytest
pytest.importorskip("a_package_that_nobody_has")
"""


@pytest.fixture
def repository(root: Path, tmp_path: Path) -> Path:
    """A repository with the real rule and no tests yet; there is no shared folder beside it."""
    tests = tmp_path / "repository" / "tests"
    tests.mkdir(parents=True)
    shutil.copy2(root / "tests/conftest.py", tests)
    return tests.parent


def run(repository: Path, code: str, *, ci: bool, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (repository / "tests/test_it.py").write_text(code)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:asyncio", *arguments]
    environment |= {"CI": "true"} if ci else {}
    return subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)


def closing_line(result: subprocess.CompletedProcess[str]) -> str:
    return result.stdout.rstrip().splitlines()[-1]


def test_at_home_a_skip_is_listed_with_its_reason_and_count(repository: Path) -> None:
    result = run(repository, SKIPS, ci=False)
    assert result.returncode == 0
    assert "    1  no browser is installed" in result.stdout
    assert "    1  no broker is installed" in result.stdout
    assert "1 passed, 2 skipped" in closing_line(result)


def test_in_ci_a_skip_fails_with_its_reason(repository: Path) -> None:
    result = run(repository, SKIPS, ci=True)
    assert result.returncode == 1
    assert "could not run: no browser is installed. In CI nothing is skipped." in result.stdout
    assert "could not run: no broker is installed. In CI nothing is skipped." in result.stdout
    assert "skipped" not in closing_line(result)


def test_in_ci_a_skip_fails_when_tests_run_in_several_processes(repository: Path) -> None:
    result = run(repository, SKIPS, ci=True, arguments=("-n", "2"))
    assert result.returncode == 1
    assert "skipped" not in closing_line(result)


def test_in_ci_a_module_that_skips_itself_fails(repository: Path) -> None:
    result = run(repository, MODULE, ci=True)
    assert result.returncode != 0
    assert "a_package_that_nobody_has" in result.stdout


def test_in_ci_the_shared_folder_may_be_absent(repository: Path) -> None:
    result = run(repository, SHARED, ci=True)
    assert result.returncode == 0
    assert "    2  no shared folder beside the repository" in result.stdout
    assert "2 skipped" in closing_line(result)


def test_in_ci_naming_the_shared_folder_is_no_excuse_while_it_is_there(repository: Path) -> None:
    (repository.parent / "shared").mkdir()
    code = "import pytest\ndef test_it(): pytest.skip('no shared folder')\n"
    assert run(repository, code, ci=True).returncode == 1


def test_an_expected_failure_is_not_a_skip(repository: Path) -> None:
    code = "import pytest\n@pytest.mark.xfail(reason='known')\ndef test_it(): assert False\n"
    result = run(repository, code, ci=True)
    assert result.returncode == 0
    assert "1 xfailed" in closing_line(result)
