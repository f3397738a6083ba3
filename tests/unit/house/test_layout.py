"""The import package is links to four top-level folders, and nothing loads a folder twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("connectors", "models", "schemas", "streams")


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize("room", ROOMS)
def test_a_subpackage_is_a_relative_link_to_its_folder(root: Path, room: str) -> None:
    assert os.readlink(root / "headrace" / room) == f"../{room}"


def test_the_package_holds_nothing_but_its_links_and_its_face(root: Path) -> None:
    names = {path.name for path in (root / "headrace").iterdir()} - {"__pycache__"}
    assert names == {*ROOMS, "__init__.py", "__main__.py", "py.typed"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_folder_refuses_its_bare_name(root: Path, room: str) -> None:
    result = python(f"import {room}", cwd=root)
    assert result.returncode != 0
    assert f"ImportError: import headrace.{room}, not {room}" in result.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_below_a_folder_refuses_its_bare_name(root: Path, room: str) -> None:
    module = next(path for path in sorted((root / room).rglob("*.py")) if path.name != "__init__.py")
    name = ".".join(module.relative_to(root).with_suffix("").parts)
    result = python(f"import {name}", cwd=root)
    assert result.returncode != 0
    assert f"ImportError: import headrace.{room}, not {room}" in result.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_with_modules_is_a_package(root: Path, room: str) -> None:
    """Without its __init__.py a folder works in a checkout and is missing from the wheel."""
    folders = {path.parent for path in (root / room).rglob("*.py")}
    assert [str(folder.relative_to(root)) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_no_folder_of_tests_is_a_package(root: Path) -> None:
    assert list((root / "tests").rglob("__init__.py")) == []


def test_imports_come_from_the_checkout(root: Path, tmp_path: Path) -> None:
    code = "import headrace, headrace.schemas.streams as s; print(headrace.__file__); print(s.__file__)"
    package, module = (Path(line) for line in python(code, cwd=tmp_path).stdout.splitlines())
    assert package == root / "headrace" / "__init__.py"
    assert module.resolve() == root / "schemas" / "streams.py"
