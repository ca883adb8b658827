"""What a killed server has left is found beside the first requests, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

import oubliette
from oubliette import ids
from oubliette.runtime.files import leftovers
from oubliette.runtime.files.project_dirs import Folders
from oubliette.runtime.store import MEMORY, Database
from oubliette.runtime.store.execute import perform
from oubliette.runtime.store.operations import PutProject, PutSession, PutWorkspace
from tests.system.python_api import settings
from tests.unit.runtime.store import samples

if TYPE_CHECKING:
    from pathlib import Path

WAIT = 30.0


def test_files_of_deleted_sessions_and_of_unfinished_work_are_found(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.prepare()
    stays, gone = ids.new_id(ids.SESSION), ids.new_id(ids.SESSION)
    homes = folders.homes / "proj_1"
    half = folders.repositories / "proj_1" / f".{'a' * 32}.new"
    for folder in (homes / stays, homes / gone, homes / f".{'b' * 32}.gone", homes / "else", half):
        folder.mkdir(parents=True)
    for session_id in (stays, gone):
        folders.stderr_log(session_id).touch()
    with contextlib.closing(Database(MEMORY)) as database:
        connection = database.connect()
        session = msgspec.structs.replace(samples.session(), id=stays)
        perform(connection, (PutProject(samples.project(1)), PutSession(session)))

        def found(started: float) -> set[Path]:
            known = leftovers.deleted(connection, started)
            some = leftovers.find(folders, known, started)
            return set(leftovers.without_sessions(connection, some))

        made = half.stat().st_ctime
        left = {homes / gone, homes / f".{'b' * 32}.gone", folders.stderr_log(gone)}
        assert found(made + 1) == {*left, half}
        assert found(made) == left  # a running server is making it
        database.release(connection)


def test_what_is_being_made_is_no_leftover_though_it_is_stored_as_deleted(tmp_path: Path) -> None:
    """A project and a workspace have their files before they are visible; one was killed then."""
    folders = Folders(tmp_path)
    folders.prepare()
    started = 1000.0
    with contextlib.closing(Database(MEMORY)) as database:
        connection = database.connect()
        kept, left = set(), set()
        for number, at in enumerate((started - 1.0, started, started + 1.0), 2):
            project = samples.project(number, deleted_at=at)
            workspace = samples.workspace(number, project_id=samples.project(1).id, deleted_at=at)
            perform(connection, (PutProject(project), PutWorkspace(workspace)))
            paths = {
                folders.projects / project.id,
                folders.projects / workspace.project_id / "workspaces" / workspace.id,
            }
            for path in paths:
                path.mkdir(parents=True)
            (left if at < started else kept).update(paths)
        perform(connection, (PutProject(samples.project(1)),))
        known = leftovers.deleted(connection, started)
        found = {each.path for each in leftovers.find(folders, known, started)}
        assert found == left
        assert kept
        database.release(connection)


@pytest.mark.anyio
async def test_nothing_waits_for_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searching, go_on = threading.Event(), threading.Event()

    def find(*_: object) -> list[leftovers.Found]:
        searching.set()
        go_on.wait(WAIT)
        return []

    monkeypatch.setattr(leftovers, "find", find)
    async with oubliette.open(temporary=True, config=settings()) as ob:
        try:
            assert await asyncio.to_thread(searching.wait, WAIT)
            assert await ob.projects() == []
        finally:
            go_on.set()
