"""Each class of the package has a name of its own, so that a name leads to one place."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.product_files import PACKAGE, product_files
from tests.syntax import parse

FOR_PROGRAMS = {
    "Event",
    "Message",
    "PermissionRequest",
    "Project",
    "Session",
    "Status",
    "ToolCall",
    "ToolResult",
    "Turn",
    "Usage",
}
"""Names that programs use, of one class of the API; inside the server another class has each."""


def defined_in(folder: Path) -> dict[str, list[str]]:
    """The names of all classes below a folder, nested ones too, and the modules that define them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in product_files(folder):
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(folder).as_posix())
    return found


API = ("api/", "contract/events.py")
BLOCKING = "sync/"
"""Its classes have the names of those that they wait for (tests/unit/sync/test_twin.py)."""


def test_no_name_of_a_class_is_taken_twice() -> None:
    found = defined_in(PACKAGE)
    assert len(found) > 500
    for modules in found.values():
        if any(module.startswith("api/") for module in modules):
            modules[:] = [each for each in modules if not each.startswith(BLOCKING)]
    twice = {name: modules for name, modules in found.items() if len(modules) > 1}
    assert twice.keys() == FOR_PROGRAMS
    for name, modules in twice.items():
        assert [module.startswith(API) for module in modules].count(True) == 1, name


def test_a_name_that_two_modules_take_is_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class A:\n    class B: pass\n")
    (tmp_path / "two.py").write_text("class B: pass\n")
    assert defined_in(tmp_path) == {"A": ["one.py"], "B": ["one.py", "two.py"]}
