"""The glossary names classes that exist, and no document uses a word that it replaced."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z]\w*)?)`")
"""A name in backticks, written as classes are."""


def classes() -> set[str]:
    """The names of all classes of the package."""
    return {
        node.name
        for file in (ROOT / "oubliette").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def test_every_class_that_the_glossary_names_exists() -> None:
    named = set(CLASS.findall(GLOSSARY.read_text(encoding="utf-8")))
    assert len(named) > 30
    assert named - classes() == set()


def test_no_word_of_the_glossary_is_defined_twice() -> None:
    page = GLOSSARY.read_text(encoding="utf-8").split("## Words with several meanings")[0]
    rows = re.findall(r"(?m)^\| ([^|]+?) \|", page)
    words = [word for row in rows if row not in {"word", "---"} for word in row.split(", ")]
    assert len(words) > 80
    assert sorted({word for word in words if words.count(word) > 1}) == []
