"""The cases that were recorded of the reference planner, and whether we give its answers.

There are two kinds of check, in tests/conformance; `load_checks` finds them:

* copy_*.py ask `headrace.models.reference`, our copy of the reference planner. They assert that it gives the recorded
  answer within the file's tolerance.
* check_*.py ask what Headrace itself plans with. They return None where its answer is the reference's too, or the names
  of the deliberate differences that explain it: headings of docs/reference-differences.md. They assert what our answer
  is in either case.

A case that was recorded as a quirk is one that nobody should copy, so our own answer counts for it. Any other case is
matched where the copy, or what Headrace plans with where there is no copy, gives the reference's answer.
"""

import importlib.util
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT.parent / "shared" / "vectors"
PAGE = ROOT / "docs" / "reference-differences.md"
ABSENT = "no vectors of the reference: they are in the shared folder beside the repository"
NOT_A_NUMBER = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded case, or a part of what it asks. `quirk`: what was recorded looks like the reference's mistake."""

    file: str
    name: str
    part: str  # empty where the case is looked at as a whole
    input: Mapping[str, Any]
    expected: Mapping[str, Any]
    quirk: bool
    why: str
    tolerance: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.name}:{self.part}" if self.part else self.name


Check = Callable[[Case], Collection[str] | str | None]
Copy = Callable[[Case], None]


@dataclass(slots=True)
class Registry:
    """Checks by file, and the parts that a file's cases are looked at in."""

    checks: dict[str, Check] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asks: dict[str, Callable[[Case], bool]] = field(default_factory=dict)


REGISTRY = Registry()


def checks(
    *files: str,
    parts: tuple[str, ...] = ("",),
    asks: Callable[[Case], bool] = lambda case: True,
) -> Callable[[Check], Check]:
    """Registers a check for the cases of some files, named without their ending.

    A case that asks a hundred questions of several kinds is looked at in `parts`, each of which counts where it `asks`
    anything.
    """

    def register(check: Check) -> Check:
        for file in files:
            assert file not in REGISTRY.checks, f"{file} has two checks"
            REGISTRY.checks[file] = check
            REGISTRY.parts[file] = parts
            REGISTRY.asks[file] = asks
        return check

    return register


def copies(*files: str) -> Callable[[Copy], Copy]:
    """Registers a check of our copy of the reference for the cases of some files."""

    def register(copy: Copy) -> Copy:
        for file in files:
            assert file not in REGISTRY.copies, f"{file} has two copies"
            REGISTRY.copies[file] = copy
        return copy

    return register


@cache
def load_checks() -> Registry:
    """Everything that is registered by tests/conformance/check_*.py and copy_*.py."""
    here = ROOT / "tests" / "conformance"
    for path in sorted([*here.glob("check_*.py"), *here.glob("copy_*.py")]):
        spec = importlib.util.spec_from_file_location(f"conformance_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return REGISTRY


@cache
def document(file: str) -> Mapping[str, Any]:
    """A whole file, with its numbers that JSON has no word for."""
    raw = json.loads((VECTORS / f"{file}.json").read_text(encoding="utf-8"))
    found = _numbers(raw)
    assert isinstance(found, dict)
    return found


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return NOT_A_NUMBER.get(value, value) if isinstance(value, str) else value


def cases(file: str, parts: tuple[str, ...] = ("",)) -> list[Case]:
    """The cases of a file, once for each part."""
    found = document(file)
    return [
        Case(
            file=file,
            name=case["name"],
            part=part,
            input=case["input"],
            expected=case["expected"],
            quirk=bool(case.get("peer_quirk")),
            why=str(case.get("explanation", "")),
            tolerance=found["tolerance"],
        )
        for case in found["cases"]
        for part in parts
    ]


def files() -> list[str]:
    """The files of cases that were given, without their ending."""
    return sorted(path.stem for path in VECTORS.glob("*.json"))


def own_cases() -> Iterator[Case]:
    """Every case that what Headrace plans with is asked, in its parts."""
    for file, parts in sorted(load_checks().parts.items()):
        yield from filter(REGISTRY.asks[file], cases(file, parts))


def copied_cases() -> Iterator[Case]:
    """Every case that our copy of the reference is asked."""
    for file in sorted(load_checks().copies):
        yield from cases(file)


def run(case: Case) -> frozenset[str]:
    """Our answer beside the reference's: the deliberate differences, if any. Raises AssertionError.

    Fits take seconds and cases are run more than once, so that an answer is remembered.
    """
    key = case.file, case.title
    if key not in _answers:
        found = load_checks().checks[case.file](case)
        _answers[key] = frozenset([found] if isinstance(found, str) else found or ())
    return _answers[key]


_answers: dict[tuple[str, str], frozenset[str]] = {}
_copied: set[tuple[str, str]] = set()


def run_copy(case: Case) -> None:
    """Raises AssertionError where our copy of the reference gives another answer than the reference."""
    key = case.file, case.title
    if key not in _copied:
        load_checks().copies[case.file](case)
        _copied.add(key)


def differences(case: Case) -> frozenset[str]:
    """The deliberate differences of a whole case, empty where it is matched. Raises AssertionError."""
    known = load_checks()
    if case.file in known.copies and not case.quirk:
        run_copy(case)
        return frozenset()
    parts = [replace(case, part=part) for part in known.parts[case.file]]
    asked = [part for part in parts if known.asks[case.file](part)]
    assert asked, "nobody looks at this case"
    return frozenset().union(*map(run, asked))


def close(got: float | None, want: float | None, *, rel: float, absolute: float = 0.0) -> bool:
    """Are two numbers equal within the tolerance? None equals None alone, NaN equals NaN."""
    if got is None or want is None:
        return got is want
    if math.isnan(got) or math.isnan(want):
        return math.isnan(got) and math.isnan(want)
    return math.isclose(got, want, rel_tol=rel, abs_tol=absolute)


def documented() -> set[str]:
    """The names of the differences that the page explains: its headings of the third level."""
    return set(re.findall(r"^### (.+?)\s*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
