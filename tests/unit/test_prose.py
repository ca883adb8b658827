"""Docstrings and comments are plain technical English, as far as words can be counted."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.syntax import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DONE = (
    "incontainer",
    "oubliette/*.py",
    "oubliette/actors",
    "oubliette/api",
    "oubliette/cli",
    "oubliette/cluster",
    "oubliette/config",
    "oubliette/contract",
    "oubliette/kit",
    "oubliette/mcp_front",
    "oubliette/runtime",
    "oubliette/sync",
    "oubliette/testing",
    "oubliette/tools",
)
"""Folders and patterns of modules that follow the rules. Add a folder once its prose does."""
BANNED = re.compile(
    r"\b(?:whoever|whomever|whatever|lets? go|anew|for good|by itself|(?:come|comes|came|put|at) (?:to )?rest"
    r"|told|tells?|telling|said|says?|saying|hears?|heard|hearing"
    r"|lends?|lent|lending|house|doors?|gates?|patience|knock(?:s|ed|ing)?"
    r"|somebody|nobody|speaks?|spoke|spoken|wishes|stray|strays)\b"
    r"|\bthe (?:agent )?host (?:in|of) (?:a|the) container\b|\bagent host\b|\bcontainer's host\b",
    re.IGNORECASE,
)
"""Personification and aphorisms; the process in a container is the guest."""
HEADLESS = re.compile(r"(?:What|How|Where|Who|Whom|Whose|Which|When|Why|That|If)\b")
"""Openings without a subject. `Whether …` is usual for a property."""
SHOWN = {"help", "hint", "remedy", "description", "epilog"}
"""Arguments whose text users read: help of options, remedies of errors, schemas of tools."""
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")


class Prose(NamedTuple):
    """One docstring or comment."""

    line: int
    owner: str
    text: str
    opens: bool


def violations(prose: Prose) -> Iterator[str]:
    plain = " ".join(QUOTED.sub("", prose.text).split())
    for found in BANNED.finditer(plain):
        yield f"{prose.line}: {prose.owner}: {found[0]!r}"
    if prose.opens and (found := HEADLESS.match(prose.text.strip())):
        yield f"{prose.line}: {prose.owner} begins with {found[0]!r}"


def shown(node: ast.keyword) -> str:
    """The constant text of an argument that users read; empty if it has none."""
    parts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
    return " ".join(each for each in parts if isinstance(each, str))


def prose_of(source: str) -> Iterator[Prose]:
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.keyword) and node.arg in SHOWN:
            yield Prose(node.value.lineno, f"{node.arg}=", shown(node), opens=node.arg == "help")
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        owner = getattr(node, "name", "module")
        for place, statement in enumerate(body):
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                name = owner if place == 0 else f"attribute in {owner}"
                yield Prose(statement.lineno, name, statement.value.value, opens=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Prose(token.start[0], "comment", token.string, opens=False)


def found_in(source: str) -> list[str]:
    return [each for prose in prose_of(source) for each in violations(prose)]


@pytest.mark.parametrize("folder", DONE)
def test_a_folder_that_is_done_has_plain_docstrings_and_comments(folder):
    files = sorted(ROOT.glob(folder if folder.endswith(".py") else f"{folder}/**/*.py"))
    assert len(files) > 5
    found = []
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        for prose in prose_of(path.read_text(encoding="utf-8")):
            found += [f"{name}:{each}" for each in violations(prose)]
    assert found == []


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('"""What the server is told first."""', ["'told'", "begins with 'What'"]),
        ('"""Return the reply."""\nx = 1  # whoever reads it', ["comment: 'whoever'"]),
        ('def f():\n    """Who runs it."""', ["f begins with 'Who'"]),
        ('x = 1\n"""How it is called."""', ["attribute in module begins with 'How'"]),
        ('class A:\n    """Where\n    sockets lie."""', ["A begins with 'Where'"]),
        ('"""Forget it for\ngood."""', ["good'"]),
        ('"""Start the agent host."""', ["'agent host'"]),
        ('"""Return `say TEXT` of the machine\'s host name."""', []),
        ('"""Whether the link is open."""', []),
        ('f(help="What it is for.", hint="nobody says")', ["What", "'nobody'", "'says'"]),
        ('print("nobody told the host")', []),
    ],
)
def test_a_violation_is_found_and_named(source, named):
    found = found_in(source)
    assert len(found) == len(named)
    for each, part in zip(found, named, strict=True):
        assert part in each
