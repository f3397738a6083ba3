"""We give the reference's answers, but for the deliberate differences that docs/reference-differences.md explains."""

import re

import pytest
from conformance import ABSENT, PAGE, VECTORS, Case, all_cases, documented, load_checks, missing, run

if not VECTORS.is_dir():
    pytest.skip(ABSENT, allow_module_level=True)

pytestmark = pytest.mark.shared

CASES = list(all_cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}-{case.title}")
def test_a_case_is_answered_as_the_reference_does_or_differs_for_a_documented_reason(case: Case) -> None:
    try:
        differences = run(case)
    except AssertionError:
        if missing(case) is None:
            raise
        return
    assert differences - documented() == set()


def test_a_difference_of_a_case_that_is_no_quirk_is_named_in_the_page() -> None:
    """Quirks are told by their kind; a case that the reference got right must be told by its name."""
    text = PAGE.read_text(encoding="utf-8")
    told = set(re.findall(r"`([\w/.-]+)`", text))
    different = []
    for case in CASES:
        try:
            if run(case) and not case.quirk:
                different.append(case.name)
        except AssertionError:
            continue
    assert sorted(set(different) - told) == []


def test_every_quirk_is_answered_by_what_we_do() -> None:
    assert {case.title for case in CASES if case.quirk and missing(case)} == set()


def test_what_is_still_missing_names_real_cases() -> None:
    known = {(case.file, case.title) for case in CASES}
    listed = {(file, name) for file, names in load_checks().not_yet.items() for name in names}
    assert listed - known == set()
