"""The clock of the machine goes back, between two starts: what was stored last is the latest."""

from __future__ import annotations

import time
from typing import Any

import pytest

import oubliette
from oubliette import ids
from tests.system.python_api import settings, short_home

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


class Opened:
    """A home that is used by one process after the other, each with the clock that it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._times = time.time, time.time_ns

    def process(self, ahead: float) -> None:
        seconds, nanoseconds = self._times
        self._monkeypatch.setattr(ids, "_last", 0)
        self._monkeypatch.setattr(time, "time", lambda: seconds() + ahead)
        self._monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + int(ahead * 1e9))


async def spawned(ob: Any, project_id: str, **more: Any) -> dict[str, Any]:
    """The answer of `session_spawn`."""
    return await ob.call("session_spawn", project_id=project_id, prompt="say hello", **more)


async def test_a_message_goes_to_the_session_that_was_started_last(monkeypatch):
    machine = Opened(monkeypatch)
    new: dict[str, Any] = {"create_workspace": True, "external_id": "ada"}
    with short_home() as home:
        machine.process(3600.0)
        async with oubliette.open(home, config=settings()) as ob:
            project = (await ob.call("project_create", name="first", init_git=False))["id"]
            first = await spawned(ob, project)
            workspace = (await spawned(ob, project, **new))["workspace_id"]
        machine.process(0.0)
        async with oubliette.open(home, config=settings()) as ob:
            second = await spawned(ob, project, new_session=True)
            later = (await spawned(ob, project, **new))["workspace_id"]
            await ob.call("project_create", name="second", init_git=False)
        machine.process(-3600.0)
        async with oubliette.open(home, config=settings()) as ob:
            again = await spawned(ob, project)
            assert again["session_id"] == second["session_id"] != first["session_id"]
            assert (await spawned(ob, project, external_id="ada"))["workspace_id"] == later
            listed = await ob.call("session_list", project_id=project)
            found = [each["session_id"] for each in listed["sessions"]]
            assert found.index(first["session_id"]) < found.index(second["session_id"])
            projects = (await ob.call("project_list"))["projects"]
            assert [each["name"] for each in projects] == ["first", "second"]
            known = (await ob.call("workspace_list", project_id=project))["workspaces"]
            kept = [each["id"] for each in known]
            assert kept.index(workspace) < kept.index(later)
