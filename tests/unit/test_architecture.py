"""docs/architecture.md says what the code says: floors, actors, files, messages, tests."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

import oubliette.actors
import oubliette.mcp_front
from oubliette.kit import Actor
from oubliette.runtime.store import operations

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
KIT = {"Supervisor"}
"""Classes of the kit that run as they are."""
_LINE = re.compile(r"(?P<rails>(?:[│ ] {3})*)(?P<elbow>[├└]── )?(?P<label>\S+) +(?P<cls>\w+)")


@dataclass(frozen=True)
class Drawn:
    """One line of the drawing: a name, with `<…>` for what differs, and a class."""

    label: str
    cls: str
    above: Drawn | None

    def draws(self, cls: str, label: str) -> bool:
        """Whether this is the line of an actor of this class and with this name."""
        parts = re.split(r"<[^>]+>", self.label)
        return cls == self.cls and bool(re.fullmatch("[^/+]+".join(map(re.escape, parts)), label))

    def __str__(self) -> str:
        return f"{self.label} {self.cls}"


def section(title: str) -> str:
    """The text below a heading of the page."""
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    assert found, f"there is no section {title}"
    return found[1]


def drawn() -> list[Drawn]:
    """The lines of the actor tree, parents before their children."""
    block = re.search(r"```text\n(.*?)```", section("The actor tree"), re.S)
    assert block
    lines: list[Drawn] = []
    path: list[Drawn] = []
    for text in block[1].splitlines():
        found = _LINE.fullmatch(text.rstrip())
        assert found, f"no line of a tree: {text}"
        depth = len(found["rails"]) // 4 + bool(found["elbow"])
        line = Drawn(found["label"], found["cls"], path[depth - 1] if depth else None)
        path[depth:] = [line]
        lines.append(line)
    return lines


def subclasses(cls: type) -> set[type]:
    """Classes of the server below `cls`, however far."""
    below = {
        each
        for each in cls.__subclasses__()
        if each.__module__.startswith(
            ("oubliette.actors.", "oubliette.mcp_front.", "oubliette.kit.")
        )
    }
    return below.union(*map(subclasses, below))


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Everything that defines actors and messages."""
    for package in (oubliette.actors, oubliette.mcp_front):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.startswith("oubliette.actors.") or "actor" in module.name:
                importlib.import_module(module.name)


def rows(title: str) -> list[list[str]]:
    """The cells of the first table of a section, without its head."""
    table = re.search(r"(?:^\|.*\n)+", section(title), re.M)
    assert table
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_floors_are_those_of_the_import_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    told = [re.findall(r"`([\w.]+)`", cells[0]) for cells in rows("Layers")]
    assert told == [layer.replace(" ", "").split(":") for layer in layers]


def test_every_class_of_actors_is_drawn_and_has_a_row() -> None:
    classes = {each.__name__ for each in subclasses(Actor) if not subclasses(each)} | KIT
    assert {line.cls for line in drawn()} == classes
    told = [re.findall(r"`(\w+)`", cells[0])[0] for cells in rows("What each actor does")]
    assert sorted(told) == sorted(classes)


def test_every_message_that_is_named_is_handled_by_its_receiver() -> None:
    actors = {each.__name__: each for each in subclasses(Actor)}
    for cells in rows("What each actor does"):
        for receiver, listed in re.findall(r"`(\w+)` \(([^)]*)\)", f"{cells[3]}, {cells[4]}"):
            actors[receiver]._actor_collect_handlers()
            handled = {kind.__name__ for kind in actors[receiver]._actor_handlers}
            named = re.findall(r"`(\w+)`", listed)
            assert named
            assert [name for name in named if name not in handled] == [], (cells[0], receiver)


def test_every_operation_that_is_named_is_one() -> None:
    named = {
        name
        for cells in rows("What each actor does")
        for name in re.findall(r"`((?:Put|Delete|Settle|Append)\w+)`", cells[2])
    }
    assert len(named) > 8
    assert named <= {each.__name__ for each in get_args(operations.Op)}


def test_every_file_and_test_that_is_named_is_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`((?:oubliette|incontainer|tests)/[\w/.]+)(?:::(\w+))?`", page)
    assert len(named) > 40
    for path, test in named:
        assert (ROOT / path).exists(), path
        if test:
            source = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^(?:async )?def {test}\(", source, re.M), (path, test)
