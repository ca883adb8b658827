"""Trees are made whatever the garbage collector has others do meanwhile."""

from __future__ import annotations

import ast
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.syntax import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).read_text(encoding="utf-8")


@pytest.fixture
def parses_at_collections() -> Iterator[None]:
    """Every collection parses something, and there are many."""
    thresholds = gc.get_threshold()

    def collected(phase: str, _: dict[str, Any]) -> None:
        if phase == "stop":
            gc.callbacks.remove(collected)
            ast.parse("a = 1 + (2 * 3)")
            gc.callbacks.append(collected)

    gc.callbacks.append(collected)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(collected)


@pytest.mark.usefixtures("parses_at_collections")
def test_a_tree_is_made_while_collections_parse_other_source() -> None:
    assert ast.dump(parse(SOURCE)) == ast.dump(parse(SOURCE))
    assert gc.isenabled()


def test_a_newer_syntax_is_refused_for_an_older_python() -> None:
    with pytest.raises(SyntaxError):
        parse("match x:\n    case 1: pass\n", feature_version=(3, 9))
