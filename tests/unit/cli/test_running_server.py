"""`oubliette status` and `oubliette stop`: what is printed about the server that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oubliette.cli.client import tools
from oubliette.cli.serve import running_server
from oubliette.errors import NotFound
from oubliette.version import __version__
from tests.unit.cli.command_line import Run

STATUS = {"pid": 7, "url": "http://127.0.0.1:1/mcp", "version": __version__}
SESSIONS = [
    {"status": "running", "agent": "opencode"},
    {"status": "idle", "agent": "scripted"},
    {"status": "idle", "agent": "opencode"},
]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a running server tells of itself."""
    told: dict[str, Any] = {**STATUS, "since": 0.0, "runtime": "docker", "isolation": "container"}

    class Client:
        def __init__(self, _: Path) -> None: ...
        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...
        def status(self) -> dict[str, Any]:
            return told

        def decide_for_agents(self, _: str) -> None:
            raise NotFound("unknown verb 'on_stop'")

    def call(_: object, tool: str, *__: object) -> dict[str, Any]:
        if tool == "permission_list":
            return {"permissions": [{}, {}], "more": False}
        return {"sessions": SESSIONS, "next_cursor": None}

    monkeypatch.setattr(running_server, "ControlClient", Client)
    monkeypatch.setattr(tools.HomeServer, "call", call)
    return told


def test_the_status_counts_sessions_by_state_and_agent_and_names_what_waits(
    run: Run, server: dict[str, Any]
) -> None:
    done = run("status")
    assert done.code == 0
    assert "address: http://127.0.0.1:1/mcp\nprocess: 7, since 1970-01-01 00:00:00Z" in done.out
    assert "live sessions: 2 idle, 1 running\ntheir agents: 2 opencode, 1 scripted\n" in done.out
    assert "permissions asked: 2\n" in done.out
    assert "oubliette permit" in done.err
    found = json.loads(run("status", "-o", "json").out)
    assert found["sessions"] == {"running": 1, "idle": 2}
    assert (found["runtime"], found["permissions"]) == ("docker", 2)


def test_a_server_of_another_release_is_named_and_may_tell_less(
    run: Run, server: dict[str, Any]
) -> None:
    for name in ("since", "runtime", "isolation"):
        del server[name]
    server["version"] = "0.0.9"
    done = run("status")
    assert (done.code, "process: 7\n" in done.out) == (0, True)
    assert f"The server is of version 0.0.9, this command of {__version__}." in done.err
    stopped = run("stop", "--agents", "end")
    assert (stopped.code, "oubliette session end --all" in stopped.err) == (3, True)


def test_without_a_server_there_is_no_status(run: Run) -> None:
    done = run("status", "-o", "json")
    assert (done.code, done.out) == (8, "")
    assert json.loads(done.err)["error"]["message"].startswith("no server runs on ")
