"""Commands that delete work: a person at a terminal is asked before, a program is not."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from oubliette.cli.client import tools
from tests.unit.cli.command_line import Run

PROJECT = "proj_01m8dbmeqzrs00000000000001"
SESSION = "gogol_01m8dbmeqzrs00000000000001"
WORKSPACE = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
COMMANDS = [
    ("project", "delete", PROJECT),
    ("workspace", "delete", PROJECT, WORKSPACE),
    ("drop", SESSION),
]


class Person(io.StringIO):
    """Answers to come, at a terminal; and what is shown there."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def deleted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the server was asked to delete."""
    asked: list[Any] = []

    def call(_: object, tool: str, given: dict[str, Any], *__: object, **___: object) -> Any:
        if tool.endswith("_delete"):
            asked.append(given)
        return {
            "workspaces": [{"id": WORKSPACE}],
            "next_cursor": None,
            "project_id": PROJECT,
            "workspace_id": WORKSPACE,
            "default_workspace_id": "another",
            "title": "Fix it",
        }

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return asked


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_person_is_asked_and_no_is_the_default(
    run: Run, deleted: list[Any], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    for answer, code in (("\n", 1), ("n\n", 1), ("y\n", 0)):
        screen = Person()
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(sys, "stdin", Person(answer))
        assert run(*words).code == code, screen.getvalue()
        assert "[y/N]" in screen.getvalue()
        assert ("Nothing was deleted." in screen.getvalue()) is bool(code)
        assert len(deleted) == (0 if code else 1)
    assert "yes" not in deleted[0]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_consent_and_a_program_are_asked_nothing(
    run: Run, deleted: list[Any], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    assert run(*words).code == 0  # in a pipe
    monkeypatch.setattr(sys, "stdin", Person(""))
    monkeypatch.setattr(sys, "stderr", Person())
    assert run(*words, "--yes").code == 0
    assert run(*words, "-o", "json").code == 0
    assert len(deleted) == 3
