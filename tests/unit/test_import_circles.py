"""Modules import each other one way, for type checks and within functions too."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.product_files import PACKAGE, product_files
from tests.syntax import parse

if TYPE_CHECKING:
    from collections.abc import Mapping


def modules(root: Path) -> dict[str, Path]:
    """Names and files of a package and everything in it."""
    found: dict[str, Path] = {}
    for path in product_files(root):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    """The modules of `known` that a module's text imports, wherever in it that stands."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            whole = {f"{base}.{alias.name}" for alias in node.names}
            found |= whole & known.keys()
            if whole - known.keys():
                found.add(base)
    return found & known.keys() - {name}


def circles(root: Path) -> list[set[str]]:
    """The groups of modules that can all be reached from each other."""
    known = modules(root)
    graph = {name: imports(name, path, known) for name, path in known.items()}

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for each in graph[ahead.pop()] - seen:
                seen.add(each)
                ahead.append(each)
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in graph
        if name in reach[name]
    }
    return sorted(map(set, groups), key=sorted)


def test_no_modules_import_each_other() -> None:
    assert circles(PACKAGE) == []


def test_what_runs_in_containers_is_imported_by_one_name_only() -> None:
    """`import incontainer` works in a checkout, and gives other classes than `oubliette.incontainer`."""
    tests = Path(__file__).parents[1]
    inside = PACKAGE / "incontainer"
    outside = [path for path in product_files() if inside not in path.parents]
    assert [
        path
        for path in (*outside, *tests.rglob("*.py"))
        if re.search(r"(?m)^\s*(?:from|import) incontainer\b", path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    "imported",
    [
        "from box.inner.low import thing",
        "from box.inner import low",
        "import box.inner.low",
        "from .inner.low import thing",
        "from .inner import low",
        "if TYPE_CHECKING:\n    from box.inner.low import thing",
        "def later():\n    from box.inner.low import thing",
    ],
)
def test_a_circle_is_found_however_it_is_written(tmp_path: Path, imported: str) -> None:
    inner = tmp_path / "box" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "box" / "__init__.py").write_text("")
    (tmp_path / "box" / "high.py").write_text(imported)
    (inner / "__init__.py").write_text("")
    (inner / "low.py").write_text("from ..high import other")
    assert circles(tmp_path / "box") == [{"box.high", "box.inner.low"}]
    (inner / "low.py").write_text("from ..other import thing")
    assert circles(tmp_path / "box") == []


def test_a_package_that_takes_from_a_module_counts_as_a_module(tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    (box / "__init__.py").write_text("from box.part import thing")
    (box / "part.py").write_text(
        dedent("""
            def use():
                from box import thing
        """)
    )
    assert circles(box) == [{"box", "box.part"}]
