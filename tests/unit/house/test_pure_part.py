"""tools/check_pure.py refuses what the pure part must not do, however it is spelt, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

IMPURE = {
    "a clock by name": "from time import monotonic\n",
    "a clock under an alias": "import time as physics\n",
    "a clock inside a function": "def f():\n    import time\n    return time.time()\n",
    "the date": "import datetime\n\nd = datetime.date.today()\n",
    "now of an aliased class": "from datetime import datetime as moment\n\nf = moment.now\n",
    "now of a renamed module": "import datetime as dt\n\ndef f():\n    return dt.datetime.now(dt.UTC)\n",
    "now under a second name": "import datetime\n\nclock = datetime.datetime\n\ndef f():\n    return clock.now()\n",
    "now above its import": "def f():\n    return D.now()\n\nfrom datetime import datetime as D\n",
    "randomness": "import random\n",
    "numpy's randomness": "import numpy as np\n\nrng = np.random.default_rng(1)\n",
    "numpy's randomness by name": "from numpy.random import default_rng\n",
    "numpy's randomness as a module": "from numpy import random as fixed\n",
    "a random identity": "from uuid import uuid4\n",
    "logging": "import logging\n",
    "an event loop": "import asyncio\n",
    "a coroutine": "async def f() -> None: ...\n",
    "a file": "def f(path):\n    return open(path)\n",
    "a file under an alias": "read = open\n",
    "a file through a library": "import numpy\n\na = numpy.load('x')\n",
    "a path": "from pathlib import Path\n",
    "the environment": "import os\n",
    "standard output": "print('x')\n",
    "a hidden import": "t = __import__('time')\n",
    "another hidden import": "from importlib import import_module\n",
    "evaluated code": "eval('1')\n",
    "an order that differs from process to process": "k = hash('x')\n",
    "a module that nobody thought of": "import sched\n",
    "a connector": "from headrace.connectors.bus import base\n",
    "the shell": "import headrace.streams.runtime\n",
    "a relative import": "from . import base\n",
}
PURE = {
    "mathematics": "import math\nimport numpy as np\n\nx = np.linalg.norm([math.pi])\n",
    "a given time": "from datetime import UTC, datetime\n\ndef f(now):\n    return datetime.fromtimestamp(now, UTC)\n",
    "its own name that is a builtin's": "def f(input, id):\n    return input + id\n",
    "a method called open": "def f(valve):\n    return valve.open()\n",
    "part of a package": "from urllib.parse import quote\n",
    "the pure part": "from headrace.models import scaling\nfrom headrace.schemas.base import DECODE\n",
}


def check(root: Path, tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, root / "tools/check_pure.py", tree], capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose pure part is one empty module each."""
    for name in ("schemas/a.py", "models/a.py", "streams/agents/a.py", "streams/planner.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path


@pytest.mark.parametrize("code", IMPURE.values(), ids=IMPURE.keys())
def test_an_impurity_is_refused_with_its_place(root: Path, tree: Path, code: str) -> None:
    (tree / "models/forecast").mkdir()
    (tree / "models/forecast/o.py").write_text(code)
    result = check(root, tree)
    assert result.returncode == 1
    assert result.stderr.startswith("models/forecast/o.py:")


@pytest.mark.parametrize("code", PURE.values(), ids=PURE.keys())
def test_what_is_pure_is_not_refused(root: Path, tree: Path, code: str) -> None:
    (tree / "models/p.py").write_text(code)
    result = check(root, tree)
    assert result.stderr == ""
    assert result.returncode == 0


@pytest.mark.parametrize("file", ["schemas/a.py", "models/a.py", "streams/agents/a.py", "streams/planner.py"])
def test_every_part_is_looked_at(root: Path, tree: Path, file: str) -> None:
    (tree / file).write_text("import time\n")
    assert check(root, tree).stderr.startswith(f"{file}:1: time is a clock")


def test_a_part_that_moved_away_is_missed(root: Path, tree: Path) -> None:
    (tree / "streams/planner.py").unlink()
    assert "streams/planner.py:0: holds no module" in check(root, tree).stderr


def test_an_exception_is_for_one_module_only(root: Path, tree: Path) -> None:
    code = "import argparse\nfrom pathlib import Path\n\nprint(Path(argparse.__name__))\n"
    (tree / "schemas/generate.py").write_text(code)
    assert check(root, tree).returncode == 0
    (tree / "schemas/other.py").write_text(code)
    assert check(root, tree).stderr.count("schemas/other.py") == 3
