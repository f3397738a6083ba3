"""Each import rule fires on a small offence, and on nothing else. That the code keeps them is `make imports`."""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOMS = ("connectors", "models", "schemas", "streams")


@dataclass(frozen=True, slots=True)
class Offence:
    contract: str
    file: str
    code: str
    says: str


# fmt: off
OFFENCES = [
    Offence("layers", "schemas/o.py", "import headrace.models", "headrace.schemas.o -> headrace.models"),
    Offence("layers", "models/o.py", "from headrace import connectors", "headrace.models.o -> headrace.connectors"),
    Offence("layers", "models/o.py", "import headrace.streams.agents", "headrace.models.o -> headrace.streams.agents"),
    Offence("layers", "connectors/o.py", "from headrace import models as m", "connectors.o -> headrace.models"),
    Offence("layers", "connectors/simulator/o.py", "import headrace.streams", "simulator.o -> headrace.streams"),
    Offence("pure", "streams/agents/o.py", "import headrace.connectors.bus.base", "o -> headrace.connectors.bus.base"),
    Offence("pure", "streams/agents/o.py", "import headrace.streams.runtime", "agents.o -> headrace.streams.runtime"),
    Offence("pure", "streams/planner.py", "import headrace.streams.cli", "planner -> headrace.streams.cli"),
    Offence("clockless", "models/o.py", "from time import monotonic", "headrace.models.o -> time"),
    Offence("clockless", "schemas/o.py", "import logging as l", "headrace.schemas.o -> logging"),
    Offence("clockless", "streams/agents/o.py", "def f():\n    import asyncio", "agents.o -> asyncio"),
    Offence("clockless", "streams/planner.py", "from random import random as fixed", "planner -> random"),
    Offence("strangers", "connectors/sources/o.py", "import headrace.connectors.simulator", "-> headrace.connectors"),
    Offence("strangers", "connectors/executors/o.py", "import headrace.connectors.bus.nats", "-> headrace.connectors"),
    Offence("buses", "connectors/bus/nats/o.py", "import headrace.connectors.bus.memory", "nats.o -> headrace"),
    Offence("buses", "connectors/bus/memory.py", "import headrace.connectors.bus.nats", "-> headrace.connectors.bus"),
]
# fmt: on


@pytest.fixture(scope="module")
def tree(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository's code, for offences to be written into."""
    target = tmp_path_factory.mktemp("tree")
    for name in (*ROOMS, "headrace"):
        shutil.copytree(root / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(root / "pyproject.toml", target)
    return target


def lint_imports(tree: Path, contract: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "lint-imports"
    return subprocess.run(
        [program, "--no-logo", "--no-cache", "--contract", contract], cwd=tree, capture_output=True, text=True
    )


@pytest.fixture(params=OFFENCES, ids=lambda offence: f"{offence.contract}-{offence.file}")
def offence(request: pytest.FixtureRequest, tree: Path) -> Iterator[Offence]:
    """Writes the offence into the tree, and takes it out again."""
    offence: Offence = request.param
    file = tree / offence.file
    before = file.read_text() if file.exists() else None
    file.write_text((before or "") + "\n" + offence.code + "\n")
    yield offence
    if before is None:
        file.unlink()
    else:
        file.write_text(before)


def contracts(root: Path) -> set[str]:
    config = tomllib.loads((root / "pyproject.toml").read_text())
    return {contract["id"] for contract in config["tool"]["importlinter"]["contracts"]}


def test_a_contract_fires_on_an_offence_and_names_it(tree: Path, offence: Offence) -> None:
    result = lint_imports(tree, offence.contract)
    assert result.returncode == 1, result.stdout + result.stderr
    assert offence.says in result.stdout


def test_the_contracts_are_kept_where_nobody_offends(tree: Path) -> None:
    for contract in sorted(contracts(tree)):
        result = lint_imports(tree, contract)
        assert result.returncode == 0, result.stdout + result.stderr


def test_every_contract_is_shown_to_fire(root: Path) -> None:
    assert contracts(root) == {offence.contract for offence in OFFENCES}
