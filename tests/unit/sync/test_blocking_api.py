"""Blocking classes are what .ci/blocking_api.py makes of the asynchronous ones."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / ".ci" / "blocking_api.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("blocking_api", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(script: Any, source: str) -> str:
    """The blocking version of a class `Tree` after its name, without its layout."""
    return script.Twin("Tree", "oubliette.api.tree", source).text().partition("class Tree")[2]


def test_the_blocking_classes_are_current(script) -> None:
    stale = [
        path.name
        for path, text in script.current().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "renew them: python .ci/blocking_api.py"


def test_what_is_not_current_is_refused_or_written(script, monkeypatch, tmp_path, capsys) -> None:
    path = tmp_path / "tree.py"
    path.write_text("old")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "current", lambda: {path: "new"})
    monkeypatch.setattr(sys, "argv", ["blocking_api.py", "--check"])
    with pytest.raises(SystemExit, match=r"renew: python \.ci/blocking_api\.py"):
        script.main()
    assert (capsys.readouterr().out, path.read_text()) == ("tree.py\n", "old")
    monkeypatch.setattr(sys, "argv", ["blocking_api.py"])
    script.main()
    assert path.read_text() == "new"
    monkeypatch.setattr(sys, "argv", ["blocking_api.py", "--check"])
    script.main()


SPAWN = '''
class Tree:
    async def spawn(self, prompt: str, *, tools: Iterable[object]) -> Session:
        """Spawn one."""
        return await something(prompt, tools)

    async def began(self) -> None:
        """Record it. For the package."""

    async def _spawn(self) -> None:
        """Record it."""
'''
BLOCKING_SPAWN = '''
    def spawn(self, prompt: str, *, tools: Iterable[object]) -> Session:
        """Spawn one."""
        tools = listed_tools(tools)
        twin = self._thread.call(lambda: self._tree.spawn(prompt, tools=tools))
        return Session(self._thread, twin)
'''


def test_a_call_waits_and_its_result_blocks_too(script) -> None:
    assert written(script, SPAWN).strip() == f":\n{BLOCKING_SPAWN.rstrip()}"


@pytest.mark.parametrize(
    ("member", "named"),
    [
        ("async def all(self) -> dict[str, Session]: return {}", "dict.str, Session. has no"),
        ("async def all(self): return {}", "all needs the type of its result"),
        ("async def all(self, of: Iterable[int]) -> None: pass", "of: Iterable.int. is not in"),
        ('def __init__(self) -> None:\n        self.id = 1\n        "Its id."', "id needs a type"),
        (
            "def __init__(self) -> None:\n        self.id: int = 1",
            "id needs a type and a docstring",
        ),
        (
            'def x(self) -> None:\n        """X.\n\nBlocking:\n    Y.\n\nArgs:\n    z: Z."""',
            "x: the sect",
        ),
    ],
)
def test_a_member_that_cannot_be_written_is_named(script, member: str, named: str) -> None:
    with pytest.raises(SystemExit, match=rf"^oubliette\.api\.tree: Tree: {named}"):
        written(script, f"class Tree:\n    {member}")


@pytest.mark.parametrize(
    ("text", "blocking"),
    [
        (["Run it.", "Args:\n    one: A."], ["Run it.", "Args:\n    one: A."]),
        (["Run it.", "Blocking:\n    It waits."], ["Run it.", "It waits."]),
        (
            [
                "Run it.",
                "It runs.",
                "Await it.",
                "Args:\n    a: A.",
                "Blocking:\n    It waits,\n    b.",
            ],
            ["Run it.", "It runs.", "It waits,\nb.", "Args:\n    a: A."],
        ),
    ],
    ids=["none", "nothing to replace", "a paragraph"],
)
def test_the_section_of_the_blocking_version_replaces_a_paragraph(script, text, blocking) -> None:
    given = textwrap.indent("\n\n".join(text), "    ").strip()
    source = written(script, f'class Tree:\n    """{given}\n    """')
    assert inspect.cleandoc(source.split('"""')[1]) == "\n\n".join(blocking)
