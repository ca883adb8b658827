"""Functions are short enough to be read at a glance."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.product_files import PACKAGE, product_files
from tests.syntax import parse

MOST = 60  # lines
OPTIONS = {
    "api/client.py: create_project",
    "cli/call.py: call",
    "cli/project.py: create",
    "cli/serve.py: serve",
    "cli/run/command.py: run",
    "sync/client.py: create_project",
}
"""Commands and calls that are long for their options, one parameter each; their bodies are short."""


def long_functions(folder: Path, most: int) -> dict[str, int]:
    """Functions of `most` lines or more, as `path: name`, and their lengths."""
    found: dict[str, int] = {}
    for path in product_files(folder):
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines >= most:
                    found[f"{path.relative_to(folder).as_posix()}: {node.name}"] = lines
    return found


def test_no_function_has_sixty_lines_but_for_its_options() -> None:
    found = long_functions(PACKAGE, MOST)
    assert {name: lines for name, lines in found.items() if name not in OPTIONS} == {}
    for name in found:
        path, _, function = name.partition(": ")
        for node in ast.walk(parse((PACKAGE / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                assert (node.end_lineno or 0) - node.body[0].lineno < 50


def test_a_long_function_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f():\n" + "    pass\n" * 5 + "def g(): pass\n")
    assert long_functions(tmp_path, 5) == {"one.py: f": 6}
