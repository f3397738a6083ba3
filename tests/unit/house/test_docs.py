"""The documents: links lead somewhere, every page can be found, nothing is left to be written."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOT_OURS = {".git", ".venv", ".headrace", "node_modules", "build", "dist"}
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LEFT_TO_DO = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX|T" r"BD)\b")
SOMEBODYS_MACHINE = re.compile(r"(?<![\w.:/-])/(?:home|root|Users|work|tmp)/\w")
REGISTRY = re.compile(r"\b(?:pypi\.org|pythonhosted|registry\.npmjs|deb\.debian\.org|crates\.io)\b")


def ours(pattern: str) -> list[Path]:
    """The files of the repository that match, without what tools have put there."""
    found = ROOT.rglob(pattern)
    return sorted(path for path in found if not NOT_OURS.intersection(path.relative_to(ROOT).parts) and path.is_file())


PAGES = ours("*.md")
TEXTS = [
    path
    for pattern in ("*.md", "*.py", "*.sh", "*.toml", "*.yaml", "*.yml", "*.lock", "*.conf", "Makefile", "Dockerfile")
    for path in ours(pattern)
]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def links(page: Path) -> Iterator[str]:
    """Where the links of a page lead, without those inside code."""
    yield from LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path, root: Path = ROOT) -> Iterator[str]:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue  # elsewhere
        path, _, anchor = unquote(link).partition("#")
        target = page.parent / path if path else page
        inside = target.resolve().is_relative_to(root)
        if not (inside and target.exists()) or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert list(dead_links(page)) == []


def test_every_page_of_the_documentation_is_listed_in_its_index() -> None:
    docs = ROOT / "docs"
    index = {(docs / link.partition("#")[0]).resolve() for link in links(docs / "README.md")}
    assert [
        name(page) for page in sorted(docs.glob("*.md")) if page.resolve() not in index | {docs / "README.md"}
    ] == []


def test_every_decision_record_is_listed_in_its_index() -> None:
    folder = ROOT / "docs" / "decisions"
    records = {path.name for path in folder.glob("[0-9]*.md")}
    assert records - set(links(folder / "README.md")) == set()


@pytest.mark.parametrize(
    ("rule", "pattern"),
    [("nothing is left to do", LEFT_TO_DO), ("no path of one machine", SOMEBODYS_MACHINE), ("no registry", REGISTRY)],
)
def test_no_file_says_what_only_its_author_understands(rule: str, pattern: re.Pattern[str]) -> None:
    found = [
        f"{name(path)}:{number}: {line.strip()[:80]}"
        for path in TEXTS
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], rule


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    (tmp_path / "b.md").write_text("# Two words\n")
    page.write_text("[b](b.md) [b](b.md#two-words) [b](b.md#three) [c](c.md) [out](../..) [web](https://example.org)\n")
    assert list(dead_links(page, tmp_path)) == ["b.md#three", "c.md", "../.."]
