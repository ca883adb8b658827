"""A listing of many pages, of a home where no server runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from oubliette import ids
from oubliette.cli.client import offline
from oubliette.cli.client.pages import pages
from oubliette.runtime.files import home as homes
from oubliette.runtime.store import Database
from oubliette.runtime.store.execute import perform
from oubliette.runtime.store.operations import PutProject
from tests.unit.runtime.store import samples

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_all_pages_are_read_on_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.prepare(tmp_path)
    names = [f"Project {number}" for number in range(250)]
    with contextlib.closing(Database(tmp_path / homes.DATABASE)) as database:
        connection = database.connect()
        for number, _ in enumerate(names):
            project = msgspec.structs.replace(samples.project(number), id=ids.new_id(ids.PROJECT))
            perform(connection, (PutProject(project),))
        database.release(connection)
    opened: list[Any] = []
    really = offline._opened  # noqa: SLF001 - counted
    monkeypatch.setattr(
        offline, "_opened", lambda *args, **more: opened.append(1) or really(*args, **more)
    )
    found = pages(str(tmp_path), "project_list", "projects", {})
    assert sorted(each["name"] for each in found) == sorted(names)
    assert len(opened) == 1
