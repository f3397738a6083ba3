"""Hold the pure part to its rule: no I/O, clock, randomness, event loop or logging.

    python tools/check_pure.py [repository]

import-linter sees which modules are imported; this reads the syntax tree, so it also sees `datetime.now`,
`numpy.random`, `open`, aliases of any of them, and a module that nobody thought of: what is not known to be pure is
refused.
"""

import ast
import builtins
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PURE = ("schemas", "models", "streams/agents", "streams/planner.py")

# What single modules may use besides, and why.
EXCEPTIONS: dict[str, frozenset[str]] = {
    # `python -m headrace.schemas.generate` writes asyncapi.yaml and the JSON Schemas; nothing imports it
    "schemas/generate.py": frozenset({"argparse", "pathlib", "sys", "builtins.print"}),
    # imports a forecaster of its own table, so that a missing extra is missed only by those who ask for it
    "models/forecast/registry.py": frozenset({"importlib.import_module"}),
    # asks whether an extra is installed without the seconds that its import takes
    "models/forecast/extras.py": frozenset({"importlib.util.find_spec"}),
}

# fmt: off
KNOWN_PURE = (
    "__future__", "abc", "base64", "binascii", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime",
    "decimal", "difflib", "enum", "fractions", "functools", "graphlib", "hashlib", "heapq", "itertools", "json",
    "keyword", "math", "numbers", "operator", "re", "statistics", "string", "struct", "textwrap", "types", "typing",
    "unicodedata", "urllib.parse", "warnings", "zlib",
    "cmdstanpy", "filterpy", "msgspec", "numpy", "pandas", "pmdarima", "prophet", "scipy", "statsmodels",
    "threadpoolctl", "yaml",
    "headrace.schemas", "headrace.models", "headrace.streams.agents", "headrace.streams.planner",
)
# fmt: on

# Names inside pure modules that are not pure, and the reason that is printed.
IMPURE = {
    "datetime.datetime.now": "reads the clock",
    "datetime.datetime.utcnow": "reads the clock",
    "datetime.datetime.today": "reads the clock",
    "datetime.date.today": "reads the clock",
    "numpy.random": "is random",
    "scipy.stats.qmc": "is random",
    "numpy.load": "reads a file",
    "numpy.loadtxt": "reads a file",
    "numpy.save": "writes a file",
    "numpy.savetxt": "writes a file",
    "builtins.open": "does I/O",
    "builtins.print": "does I/O",
    "builtins.input": "does I/O",
    "builtins.breakpoint": "does I/O",
    "builtins.hash": "differs from process to process",
    "builtins.id": "differs from process to process",
    "builtins.exec": "hides what it runs",
    "builtins.eval": "hides what it runs",
    "builtins.__import__": "hides what it imports",
}
WHY = {
    "time": "is a clock: take `now` as a parameter",
    "random": "is random: the same records must give the same decision",
    "secrets": "is random: the same records must give the same decision",
    "uuid": "is random: the same records must give the same decision",
    "asyncio": "is an event loop: that is the shell's",
    "logging": "is logging: return the reason as a value",
    "headrace": "is not in the pure part",
}


@dataclass(frozen=True, slots=True)
class Offence:
    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


class Reader(ast.NodeVisitor):
    """Walks one module; `offences` is what it found."""

    def __init__(self, path: str, tree: ast.Module, extra: frozenset[str]) -> None:
        self.path = path
        self.extra = extra
        self.offences: list[Offence] = []
        self.full_name: dict[str, str] = {}  # local name -> dotted name
        self.own_names = set(_bound_names(tree))
        for node in ast.walk(tree):  # first, because a function may stand above the import that it uses
            if isinstance(node, ast.Import):
                self._read_import(node)
            elif isinstance(node, ast.ImportFrom):
                self._read_import_from(node)
        self.visit(tree)

    def _read_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._import(alias.name, node)
            local = alias.asname or alias.name.partition(".")[0]
            self.full_name[local] = alias.name if alias.asname else local

    def _read_import_from(self, node: ast.ImportFrom) -> None:
        if node.level:
            self._report(node, "is a relative import: write headrace.…")
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            self._import(name, node)
            self.full_name[alias.asname or alias.name] = name

    def visit_Assign(self, node: ast.Assign) -> None:
        name = self._dotted(node.value)
        if name is not None:  # another alias: clock = datetime.datetime
            self.full_name.update({target.id: name for target in node.targets if isinstance(target, ast.Name)})
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._dotted(node)
        if name is None or not self._refuse_impure(name, node):
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.full_name:
            self._refuse_impure(self.full_name[node.id], node)
        elif node.id not in self.own_names and hasattr(builtins, node.id):
            self._refuse_impure(f"builtins.{node.id}", node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._report(node, "async def is the shell's")
        self.generic_visit(node)

    def _import(self, name: str, node: ast.stmt) -> None:
        if any(is_within(name, pure) for pure in (*KNOWN_PURE, *self.extra)):
            self._refuse_impure(name, node)
        else:
            why = WHY.get(name.partition(".")[0], "is not known to be pure; if it is, add it to tools/check_pure.py")
            self._report(node, f"{name} {why}")

    def _refuse_impure(self, name: str, node: ast.AST) -> bool:
        for impure, why in IMPURE.items():
            if is_within(name, impure) and impure not in self.extra:
                self._report(node, f"{impure} {why}")
                return True
        return False

    def _dotted(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Attribute):
            inner = self._dotted(node.value)
            return None if inner is None else f"{inner}.{node.attr}"
        return self.full_name.get(node.id) if isinstance(node, ast.Name) else None

    def _report(self, node: ast.AST, what: str) -> None:
        self.offences.append(Offence(self.path, getattr(node, "lineno", 0), what))


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Names that the module binds itself: they hide a builtin of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def check_part(root: Path, part: str) -> Iterator[Offence]:
    """What is wrong in one folder or file. That it holds no module is wrong too: the rule would guard nothing."""
    place = root / part
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []
    if not files:
        yield Offence(part, 0, "holds no module; where the pure part is now belongs into tools/check_pure.py")
    for file in files:
        path = file.relative_to(root).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=path)
        yield from Reader(path, tree, EXCEPTIONS.get(path, frozenset())).offences


def check(root: Path) -> list[Offence]:
    """What is wrong in the pure part of the repository at `root`."""
    return [offence for part in PURE for offence in check_part(root, part)]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    offences = check(root)
    for offence in offences:
        print(offence, file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
