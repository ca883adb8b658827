"""A listing of many entries, of a home where no server runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from oubliette import ids
from oubliette.cli.client import offline
from oubliette.cli.client.calls import pages
from oubliette.runtime.files import home as homes
from oubliette.runtime.store import Database
from oubliette.runtime.store.execute import perform
from oubliette.runtime.store.operations import PutProject, PutSession
from tests.unit.runtime.store import samples

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_hundreds_of_entries_are_read_by_opening_the_database_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.prepare(tmp_path)
    project = msgspec.structs.replace(samples.project(), id=ids.new_id(ids.PROJECT))
    expected = [ids.new_id(ids.SESSION) for _ in range(150)]
    with contextlib.closing(Database(tmp_path / homes.DATABASE)) as database:
        connection = database.connect()
        stored = samples.session(project_id=project.id)
        perform(
            connection,
            (
                PutProject(project),
                *(PutSession(msgspec.structs.replace(stored, id=each)) for each in expected),
            ),
        )
        database.release(connection)
    opened: list[Any] = []
    really = offline._opened  # noqa: SLF001 - counted
    monkeypatch.setattr(
        offline, "_opened", lambda *args, **more: opened.append(args) or really(*args, **more)
    )
    found = pages(str(tmp_path), "session_list", "sessions", {"project_id": project.id})
    assert [each["session_id"] for each in found] == expected
    assert len(opened) == 1
