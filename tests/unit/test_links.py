"""The links in README.md and docs/ lead to files and headings that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md"))]


def prose(page: Path) -> str:
    """The text without its blocks and spans of code."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^ *(```|~~~).*?^ *\1 *$", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may name, as GitHub and PyPI make it."""
    text = re.sub(
        r"^ *(```|~~~).*?^ *\1 *$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *#*$", text, re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        same = sum(1 for each in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", each))
        found.add(f"{anchor}-{same}" if anchor in found else anchor)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_resolves(name: str) -> None:
    page = ROOT / name
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(page)):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_readme_links_every_page() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", prose(ROOT / "README.md")))
    assert linked == set(PAGES) - {"README.md"}
