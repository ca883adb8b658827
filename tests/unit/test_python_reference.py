"""docs/python-reference.md is the page that .ci/python_reference.py makes of the docstrings."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import oubliette

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "python_reference.py"


@pytest.fixture(scope="module")
def reference() -> Any:
    spec = importlib.util.spec_from_file_location("python_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(reference) -> None:
    current = reference.PAGE.read_text(encoding="utf-8") == reference.page()
    assert current, "renew it: python .ci/python_reference.py"


def test_every_public_name_has_a_section(reference) -> None:
    sections = set(re.findall(r"(?m)^### `(\w+)`", reference.page()))
    assert sections == {*oubliette.__all__} - reference.MODULES


def test_every_section_has_a_sentence(reference) -> None:
    sections = re.split(r"(?m)^#{3,4} ", reference.page())[1:]
    empty = [each.partition("\n")[0] for each in sections if not re.search(r"(?m)^[A-Z].*", each)]
    assert empty == []


def test_sections_of_a_docstring_become_lists(reference) -> None:
    text = """Do it.

    Args:
        name: its name,
            in full.
        other: another.

    Returns:
        The thing.

    Blocking:
        It waits.
    """
    assert reference.prose(text) == (
        "Do it.\n\nArgs:\n\n* `name`: its name,\n  in full.\n* `other`: another.\n\n"
        "Returns:\n\nThe thing.\n\nIn `oubliette.sync`:\n\nIt waits.\n"
    )


def test_a_head_has_the_defaults_as_they_are_written(reference) -> None:
    assert (
        reference.signature(SAMPLE.head) == "async def head(a, b: int = 2, *, c=None) -> str: ..."
    )


class SAMPLE:
    async def head(self, a, b: int = 2, *, c=None) -> str: ...
