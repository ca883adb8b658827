"""The glossary names classes that exist, and documents use no word that it replaced."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.product_files import PACKAGE, product_files
from tests.syntax import parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GLOSSARY = DOCS / "glossary.md"
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *sorted(DOCS.rglob("*.md")),
)
"""All pages, with generated ones and descriptions of tools and keys."""
CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z]\w*)?)`")
"""A name in backticks, written as classes are."""
FILE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.py)`")
REPLACED = re.compile(
    r"\b(?:whoever|whatever|anew|for good|(?:come|comes|came|put) to rest|hostgate|patience"
    r"|houses?|doors?|journal|lends?|lent|lending)\b",
    re.IGNORECASE,
)
"""Words that documents used once, for which the glossary has the usual ones."""


def classes(*files: Path) -> set[str]:
    """The names of all classes of these files, or of the package."""
    return {
        node.name
        for file in files or product_files()
        for node in ast.walk(parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def prose(page: str) -> str:
    """A page without its code blocks, code spans and targets of links."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", page))


def test_every_class_that_the_glossary_names_exists() -> None:
    named = set(CLASS.findall(GLOSSARY.read_text(encoding="utf-8")))
    assert len(named) > 30
    assert named - classes() == set()


def test_every_class_of_a_row_is_in_a_file_that_the_row_names() -> None:
    checked = []
    for row in re.findall(r"(?m)^\| (.+) \|$", GLOSSARY.read_text(encoding="utf-8")):
        *words, where = row.split(" | ")
        files = [PACKAGE / name for name in FILE.findall(where)]
        defined = {name for file in files for name in classes(file)}
        checked += [(name, name in defined) for name in CLASS.findall(" ".join(words)) if files]
    assert len(checked) > 20
    assert [name for name, found in checked if not found] == []


def test_no_word_of_the_glossary_is_defined_twice() -> None:
    page = GLOSSARY.read_text(encoding="utf-8").split("## Words with several meanings")[0]
    rows = re.findall(r"(?m)^\| ([^|]+?) \|", page)
    words = [word for row in rows if row not in {"word", "---"} for word in row.split(", ")]
    assert len(words) > 80
    assert sorted({word for word in words if words.count(word) > 1}) == []


def test_a_word_that_was_replaced_is_found_in_prose_and_not_in_code() -> None:
    page = "Whoever lends a `door`\n```\nhouse\n```\n[of](house.md#gate) clients anew."
    assert REPLACED.findall(prose(page)) == ["Whoever", "lends", "anew"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_uses_a_word_that_the_glossary_replaced(page: Path) -> None:
    assert REPLACED.findall(prose(page.read_text(encoding="utf-8"))) == []
