"""Each actor of the package is started by a unit test, in its process and with its class by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.product_files import PACKAGE, product_files
from tests.syntax import parse

TESTS = Path(__file__).parent
CLASS = re.compile(r"^class (\w+)\(([^)]*)\):", re.MULTILINE)
STARTS = {"spawn", "ChildSpec"}
"""What starts an actor of a class that is given by name."""


def actors_of(folder: Path) -> set[str]:
    """The names of all actors below a folder: not those that are bases of others.

    Names will do: `test_class_names` sees to it that each class has one of its own.
    """
    bases: dict[str, set[str]] = {}
    for path in product_files(folder):
        for name, given in CLASS.findall(path.read_text(encoding="utf-8")):
            bases[name] = set(re.findall(r"\w+", given))

    def is_actor(name: str) -> bool:
        return name == "Actor" or any(map(is_actor, bases.get(name, ())))

    actors = {name for name in bases if is_actor(name)}
    return actors - {base for name in actors for base in bases[name]}


def started_in(folder: Path) -> set[str]:
    """The names that are given to what starts actors, in the modules below a folder."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(f"{start}(" in text for start in STARTS):
            continue
        for node in ast.walk(parse(text)):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", None))
                if called in STARTS:
                    given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "cls")]
                    found |= {name.id for name in given if isinstance(name, ast.Name)}
    return found


def test_each_actor_is_started_by_a_unit_test() -> None:
    actors = actors_of(PACKAGE)
    assert len(actors) >= 14
    assert sorted(actors - started_in(TESTS)) == []


def test_an_actor_that_is_only_named_does_not_count_as_started(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("from x import Named\nsystem.spawn(Started, Named)\n")
    (tmp_path / "two.py").write_text("ChildSpec(name='a', cls=Child)\n")
    assert started_in(tmp_path) == {"Started", "Child"}


def test_an_actor_that_inherits_another_counts_and_its_base_does_not(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Base(Actor): pass\nclass Other: pass\n")
    (tmp_path / "two.py").write_text("class Leaf(Base, Other): pass\n")
    assert actors_of(tmp_path) == {"Leaf"}
