"""`oubliette home adopt`: an identity for a copy, and none for an original that would lose by it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from oubliette.records import Container
from oubliette.runtime.files.instance import INSTANCE, PLACE
from oubliette.runtime.store import Database, Writer
from oubliette.runtime.store.operations import PutContainer, PutMeta, PutSession
from tests.unit.cli.command_line import Run
from tests.unit.runtime.store.samples import session


def filled(home: Path, place: Path, state: str = "running") -> None:
    """A database that a server at `place` has left, with a container and a session."""
    container = Container(
        id="con_1",
        project_id="proj_1",
        workspace_id=None,
        container_type="base",
        runtime="process",
        state=state,  # type: ignore[arg-type]
        created_at=1.0,
        spec_hash="0",
        host_key=b"",
        folder="/nowhere",
    )
    writer = Writer(Database(home / "oubliette.db"))
    writer.start()
    ops = (
        PutMeta(INSTANCE, "inst_1"),
        PutMeta(PLACE, str(place)),
        PutContainer(container),
        PutSession(session()),
    )
    writer.submit(ops).result(10)
    writer.close().result(10)


def identity(home: Path) -> str:
    with contextlib.closing(sqlite3.connect(home / "oubliette.db")) as database:
        (found,) = database.execute("SELECT value FROM meta WHERE key = ?", (INSTANCE,)).fetchone()
    return str(found)


def test_an_original_is_refused_with_what_would_be_lost_unless_forced(run: Run, home: Path) -> None:
    filled(home, home.resolve())
    for words in (("home", "adopt"), ("restore",)):
        done = run(*words)
        assert done.code == 1, done.err
        assert "containers that run (1)" in done.err
        assert "live sessions in them (1)" in done.err
        assert "--force" in done.err
    assert identity(home) == "inst_1"
    done = run("home", "adopt", "--force", "-o", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {"home": str(home), "instance": identity(home)}
    assert identity(home) != "inst_1"


@pytest.mark.parametrize(
    ("place", "state"), [("elsewhere", "running"), ("here", "stopped"), ("here", "lost")]
)
def test_a_copy_and_what_loses_nothing_get_an_identity(
    run: Run, home: Path, place: str, state: str
) -> None:
    filled(home, home.resolve() if place == "here" else home / "original", state)
    assert run("home", "adopt").code == 0
    assert identity(home) != "inst_1"


def test_its_older_name_names_the_new_one(run: Run, home: Path) -> None:
    filled(home, home / "original")
    done = run("restore")
    assert done.code == 0
    assert "oubliette home adopt" in done.err
    assert identity(home) != "inst_1"
