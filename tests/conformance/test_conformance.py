"""We give the reference's answers, but for its quirks; docs/reference-differences.md explains what we answer there."""

import re

import pytest
from conformance import (
    ABSENT,
    PAGE,
    VECTORS,
    Case,
    cases,
    copied_cases,
    differences,
    documented,
    files,
    load_checks,
    own_cases,
    run,
    run_copy,
)

if not VECTORS.is_dir():
    pytest.skip(ABSENT, allow_module_level=True)

pytestmark = pytest.mark.shared

OWN = list(own_cases())
COPIED = list(copied_cases())
EVERY = [case for file in files() for case in cases(file)]

# What the reference leaves to chance. docs/reference-differences.md shows the evidence.
BY_CHANCE: set[tuple[str, str]] = set()


def name(case: Case) -> str:
    return f"{case.file}-{case.title}"


@pytest.mark.parametrize("case", COPIED, ids=name)
def test_our_copy_of_the_reference_answers_as_the_reference_does(case: Case) -> None:
    run_copy(case)


@pytest.mark.parametrize("case", OWN, ids=name)
def test_what_headrace_plans_with_answers_alike_or_differs_for_a_documented_reason(case: Case) -> None:
    assert run(case) - documented() == set()


@pytest.mark.parametrize("case", EVERY, ids=name)
def test_only_a_quirk_is_a_deliberate_difference(case: Case) -> None:
    if differences(case) and not case.quirk:
        assert (case.file, case.name) in BY_CHANCE


def test_every_file_of_cases_has_a_check() -> None:
    known = load_checks()
    assert set(files()) - {*known.checks, *known.copies} == set()


def test_a_quirk_is_answered_by_what_headrace_plans_with() -> None:
    known = load_checks()
    assert {case.file for case in EVERY if case.quirk} - set(known.checks) == set()


@pytest.mark.timeout(900)  # alone, it makes every fit
def test_a_difference_of_a_case_that_is_no_quirk_is_named_in_the_page() -> None:
    """Quirks are told by their kind; a case that the reference got right must be told by its name."""
    told = set(re.findall(r"`([\w/.-]+)`", PAGE.read_text(encoding="utf-8")))
    different = {case.name for case in OWN if not case.quirk and run(case)}
    assert sorted(different - told) == []
