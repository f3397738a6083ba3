"""docs/cli.md is what the commands say of themselves."""

from pathlib import Path

import pytest

from headrace.streams.cli import reference
from headrace.streams.cli.main import COMMANDS


def test_the_page_is_current(root: Path) -> None:
    page = (root / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == reference.page(), "run: python -m headrace.streams.cli.reference"


def test_every_command_has_a_section() -> None:
    sections = [line.removeprefix("## ") for line in reference.page().splitlines() if line.startswith("## ")]
    assert {f"headrace {name}" for name in COMMANDS} - set(sections) == set()
    assert "headrace decisions follow" in sections


def test_a_stale_page_is_noticed_and_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "cli.md"
    page.write_text("old")
    monkeypatch.setattr(reference, "PAGE", page)
    assert reference.main(["--check"]) == 1
    assert page.read_text() == "old"
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    assert page.read_text() == reference.page()


def test_the_page_does_not_depend_on_the_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = reference.page()
    monkeypatch.setenv("COLUMNS", "40")
    assert reference.page() == wide
