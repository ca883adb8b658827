"""The examples of docs/actors.md run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import oubliette.kit

DOCS = Path(__file__).parents[3] / "docs" / "actors.md"


def test_the_examples_of_the_actors_page_run_in_order() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)


def test_the_page_explains_each_name_that_the_kit_exports() -> None:
    page = DOCS.read_text(encoding="utf-8")
    missing = [name for name in oubliette.kit.__all__ if not re.search(rf"\b{name}\b", page)]
    assert missing == []


def test_each_class_that_the_kit_exports_has_a_docstring() -> None:
    exported = [getattr(oubliette.kit, name) for name in oubliette.kit.__all__]
    bare = [each for each in exported if isinstance(each, type) and not vars(each).get("__doc__")]
    assert bare == []
