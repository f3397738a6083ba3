"""What is built from the repository: the source distribution, the wheel made through it, the editable install."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOMS = ("connectors", "models", "schemas", "streams")
BUILT_FROM = (*ROOMS, "headrace", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
LEFTOVERS = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", ".*")
EXTRAS = {"aiokafka", "cmdstanpy", "faust", "mode", "pandas", "pmdarima", "prophet", "threadpoolctl"}  # of extras

IMPORT_ALL = f"""
import importlib, pkgutil, headrace
print(headrace.__file__)
for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
    if module.name == "headrace.__main__":
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] not in {EXTRAS!r}:
            raise
    print(module.name)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the variables that would show it the checkout; its output when it fails is the message."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def copy_of(root: Path, target: Path) -> Path:
    """The files that a build reads, links kept as links."""
    target.mkdir()
    for name in BUILT_FROM:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True, ignore=LEFTOVERS)
        else:
            shutil.copy2(source, target / name)
    return target


def clean_python(folder: Path) -> Path:
    """A new environment that sees the dependencies of this one, but not its editable install."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    purelib = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (purelib / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def install(python: Path, *what: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    run(*pip, "install", "--no-index", "--no-deps", "--force-reinstall", *what, cwd=python.parent)


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def modules_of(root: Path) -> set[str]:
    """Every module of the four folders, by its full name."""
    return {
        module_name(Path("headrace") / path.relative_to(root)) for room in ROOMS for path in (root / room).rglob("*.py")
    }


@pytest.fixture(scope="module")
def checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of(root, tmp_path_factory.mktemp("house") / "checkout")


@pytest.fixture(scope="module")
def sdist(checkout: Path) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", checkout.parent / "dist", cwd=checkout)
    return next((checkout.parent / "dist").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the unpacked source distribution, as an installer would."""
    folder = tmp_path_factory.mktemp("unpacked")
    run("tar", "-xzf", sdist, cwd=folder)
    unpacked = next(folder.iterdir())
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "dist", cwd=unpacked)
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a clean environment that holds the wheel."""
    python = clean_python(tmp_path_factory.mktemp("installed") / "venv")
    install(python, wheel)
    return python


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_built_through_the_sdist_imports_every_module(checkout: Path, installed: Path) -> None:
    where, *imported = run(installed, "-I", "-c", IMPORT_ALL, cwd=installed.parent).splitlines()
    assert Path(where).is_relative_to(installed.parents[1])
    assert modules_of(checkout) - set(imported) == set()


def test_the_wheel_holds_one_top_level_package_and_no_tests(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"headrace"}
    assert [name for name in names if "test" in name.lower()] == []


def test_the_wheel_holds_every_file_of_the_four_folders(checkout: Path, names: set[str]) -> None:
    files = {
        f"headrace/{path.relative_to(checkout).as_posix()}"
        for room in ROOMS
        for path in (checkout / room).rglob("*")
        if path.is_file()
    }
    assert files - names == set()


def test_the_wheel_is_typed_and_holds_the_contract_of_the_wire(names: set[str]) -> None:
    assert "headrace/py.typed" in names
    assert "headrace/schemas/asyncapi.yaml" in names
    assert [name for name in names if name.startswith("headrace/schemas/json/")] != []


def test_the_wheel_carries_its_licence(names: set[str]) -> None:
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}


def test_the_installed_command_runs(installed: Path) -> None:
    assert "Usage:" in run(installed.parent / "headrace", "--help", cwd=installed.parent)


def test_a_type_checker_follows_the_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(
        "from headrace.schemas.streams import DECISIONS\nfrom headrace.models.scaling import budget\n"
        "reveal_type(DECISIONS.name)\nbudget.there_is_no_such_name\n"
    )
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache")
    command = (*mypy, "--python-executable", str(installed), "user.py")
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert 'user.py:3: note: Revealed type is "str"' in result.stdout.replace("builtins.", "")
    assert 'Module has no attribute "there_is_no_such_name"' in result.stdout
    assert "Found 1 error in 1 file" in result.stdout


def test_an_editable_install_runs_what_is_in_the_checkout(checkout: Path, tmp_path: Path) -> None:
    mine = copy_of(checkout, tmp_path / "mine")
    python = clean_python(tmp_path / "venv")
    install(python, "--no-build-isolation", "--editable", mine)
    (mine / "models" / "written_after_the_install.py").write_text("ANSWER = 42\n")
    code = "import headrace.models.written_after_the_install as m; print(m.__file__, m.ANSWER)"
    file, answer = run(python, "-I", "-c", code, cwd=tmp_path).split()
    assert Path(file).resolve() == mine / "models" / "written_after_the_install.py"
    assert answer == "42"
