"""The pages for people who work on Oubliette name files, classes and functions that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.product_files import PACKAGE, product_files
from tests.syntax import parse

ROOT = Path(__file__).parents[2]
JOURNEYS = ROOT / "docs" / "journeys.md"

SPAN = re.compile(r"`([^`\n]+)`")
PLACE = re.compile(r"([\w/]+\.py): ([\w.]+)")
"""`path: Name`, the path below `oubliette/`."""
DOTTED = re.compile(r"[A-Z]\w*\.\w+")
WORD = re.compile(r"\w+")


def without_drawings(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)


def definitions(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Classes, functions, methods and names that are given a value in a class or module."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= {prefix + node.name, *definitions(node.body, f"{prefix}{node.name}.")}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(prefix + node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(prefix + node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {prefix + each.id for each in node.targets if isinstance(each, ast.Name)}
    return found


@cache
def defined(path: str) -> frozenset[str]:
    """What the file at `path`, below the package, defines; nothing where there is none."""
    file = PACKAGE / path
    if not file.is_file():
        return frozenset()
    return frozenset(definitions(parse(file.read_text(encoding="utf-8")).body))


@cache
def everything() -> tuple[frozenset[str], frozenset[str]]:
    """All that the package defines, and all words of its source."""
    names: set[str] = set()
    words: set[str] = set()
    for file in product_files():
        names |= defined(file.relative_to(PACKAGE).as_posix())
        words |= set(WORD.findall(file.read_text(encoding="utf-8")))
    return frozenset(names), frozenset(words)


def stale(span: str) -> bool:
    """Whether the code no longer has what is written in backticks."""
    names, words = everything()
    if place := PLACE.fullmatch(span):
        return place[2] not in defined(place[1])
    if re.search(r"\.py\b", span):
        return True  # a file is named together with what is in it
    if DOTTED.fullmatch(span):
        return span not in names
    if WORD.fullmatch(span):
        return span not in (names if span[0].isupper() and not span.isupper() else words)
    return False


def journeys() -> dict[str, str]:
    """The text of each journey by its title."""
    parts = re.split(r"^## ", JOURNEYS.read_text(encoding="utf-8"), flags=re.M)[1:]
    split = (part.partition("\n") for part in parts)
    return {title: without_drawings(text) for title, _, text in split if title[1:3] == ". "}


def test_all_that_the_page_of_journeys_names_is_in_the_code() -> None:
    page = without_drawings(JOURNEYS.read_text(encoding="utf-8"))
    assert [
        line for line in page.splitlines() if line.count("`") % 2
    ] == []  # none is broken in two
    spans = SPAN.findall(page)
    assert len(PLACE.findall("\n".join(spans))) > 100
    assert [span for span in spans if stale(span)] == []


@pytest.mark.parametrize(
    "span",
    [
        "actors/session/actor.py: SessionActor.fly",
        "actors/session/actor.py: SessionConnectionActor",
        "actors/sessions.py: SessionActor",
        "oubliette/actors/session/actor.py: SessionActor",
        "actors/session/actor.py",
        "SessionActor.fly",
        "SessionActress",
        "caller_tool_wish",
    ],
)
def test_a_name_that_the_code_does_not_have_is_found(span: str) -> None:
    assert stale(span)


def test_there_are_five_journeys_of_numbered_steps_that_each_name_a_place() -> None:
    assert [title[0] for title in journeys()] == list("abcde")
    for title, text in journeys().items():
        steps = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^\S|\Z)", text, re.M | re.S)
        assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1)), title
        assert [number for number, step in steps if not PLACE.search(step)] == [], title


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "AGENTS.md"])
def test_every_file_that_a_page_for_contributors_names_is_there(page: str) -> None:
    text = without_drawings((ROOT / page).read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
    spans = [span for span in SPAN.findall(text) if re.fullmatch(r"[\w./-]+", span)]
    paths = links + [span for span in spans if "/" in span or span.endswith((".py", ".md"))]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "AGENTS.md"])
def test_every_target_of_make_that_a_page_for_contributors_names_is_there(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = set(re.findall(r"(?m)(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8")))
    assert {"demo", "test", "lint", "test-all"} <= named
    assert named - targets == set()


def test_the_page_for_coding_agents_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 40
