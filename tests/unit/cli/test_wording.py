"""Short notes of commands: they name what a person has named, and are true as they stand."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from oubliette import ids
from oubliette.cli.client import tools
from tests.unit.cli.command_line import Run

SESSION = "gogol_01m8dbmeqzrs00000000000001"
PROJECT = "proj_01m8dbmeqzrs00000000000001"
DEFAULT, OTHER = ids.new_uuid(), ids.new_uuid()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the server answers, by tool; what it was asked is under the same name behind a dot."""
    given: dict[str, Any] = {}

    def call(_: object, tool: str, arguments: dict[str, Any], *__: object, **___: object) -> Any:
        given[f".{tool}"] = arguments
        return given[tool]

    monkeypatch.setattr(tools.HomeServer, "call", call)
    return given


def test_a_turn_is_interrupted_only_where_one_runs(run: Run, answers: dict[str, Any]) -> None:
    answers["session_interrupt"] = {"session_id": SESSION, "status": "running"}
    running = run("session", "interrupt", SESSION)
    assert running.err == f"The running turn of {SESSION} is being interrupted.\n"
    answers["session_interrupt"] = {"session_id": SESSION, "status": "idle"}
    assert run("session", "interrupt", SESSION).err == f"{SESSION} is idle: no turn runs.\n"


def test_the_number_of_sessions_that_were_ended_agrees(run: Run, answers: dict[str, Any]) -> None:
    answers["project_list"] = {"projects": [{"id": PROJECT}], "next_cursor": None}
    living = {"session_id": SESSION, "status": "idle", "parent_session_id": None}
    answers["session_list"] = {"sessions": [living], "next_cursor": None}
    answers["session_end"] = {"session_id": SESSION, "status": "completed"}
    assert run("session", "end", "--all").err == "1 session was ended, with its children.\n"


def test_a_key_without_a_name_is_known_by_machine_and_time(
    run: Run, answers: dict[str, Any]
) -> None:
    made = {"token": "t", "token_id": "i", "scope": "read", "principal": "p"}
    answers["token_create"] = {**made, "expires_at": None, "users": []}
    assert run("token", "create", "--scope", "read").code == 0
    name = answers[".token_create"]["name"]
    assert name.startswith(f"{socket.gethostname()} 20")
    assert run("token", "create", "--scope", "read", "--name", "editor").code == 0
    assert answers[".token_create"]["name"] == "editor"


def test_the_path_of_a_workspace_is_printed_where_it_is(
    run: Run, home: Path, answers: dict[str, Any]
) -> None:
    there = [{"id": DEFAULT, "is_default": True}, {"id": OTHER, "is_default": False}]
    answers["workspace_list"] = {"workspaces": there, "next_cursor": None}
    folder = home.resolve() / "projects" / PROJECT / "workspaces" / DEFAULT
    folder.mkdir(parents=True)
    assert run("workspace", "path", PROJECT).out == f"{folder}\n"
    found = json.loads(run("workspace", "path", PROJECT, DEFAULT[-6:], "-o", "json").out)
    assert found == {"project_id": PROJECT, "workspace_id": DEFAULT, "path": str(folder)}
    elsewhere = run("workspace", "path", PROJECT, OTHER)
    assert (elsewhere.code, "is not on this machine" in elsewhere.err) == (3, True)
