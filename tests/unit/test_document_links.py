"""Links between the documents lead somewhere, and modules that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"(?m)^#{1,6} (.+)$")
PATH = re.compile(
    r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md|sql)|(?:oubliette|tests|examples)/[\w/.-]+)[:`]"
)
"""A file, or a folder of the source or of the tests, named as code."""


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    kept = (re.sub(r"[^\w\- ]", "", each.lower()) for each in HEADING.findall(page.read_text()))
    return {each.replace(" ", "-") for each in kept}


def broken(page: Path) -> list[str]:
    found: list[str] = []
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            found.append(f"{path}: no such file")
        elif anchor and anchor not in anchors(target):
            found.append(f"{path}#{anchor}: no such heading")
    return found


def test_a_link_without_a_target_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n[a](#one-two) [b](#three) [c](page.md#one-two) [d](gone.md)\n")
    assert broken(page) == ["#three: no such heading", "gone.md: no such file"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_has_a_target(page: Path) -> None:
    assert broken(page) == []


def missing(page: Path, *, with_folder: bool) -> list[str]:
    named = [name for name in PATH.findall(page.read_text()) if "/" in name or not with_folder]
    roots = (ROOT, ROOT / "oubliette")
    return [name for name in named if not any((root / name).exists() for root in roots)]


@pytest.mark.parametrize(
    "page",
    (DOCS / "glossary.md", *sorted((DOCS / "decisions").glob("*.md"))),
    ids=lambda page: page.name,
)
def test_every_file_that_the_glossary_and_the_decisions_name_is_there(page: Path) -> None:
    assert missing(page, with_folder=False) == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_file_that_a_page_names_by_its_path_is_there(page: Path) -> None:
    assert missing(page, with_folder=True) == []
