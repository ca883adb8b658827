"""Ids as people type them: whole, or a piece that fits one alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from oubliette import ids
from oubliette.cli.client.resolver import fitting, whole_id
from oubliette.errors import InvalidParameter, NotFound
from oubliette.records import Project, Session, Token, Workspace
from oubliette.runtime.files.home import HomeLock
from oubliette.runtime.store import Database, Writer, operations

SESSIONS = [
    "gogol_01k000000000000000000aaaaa",
    "gogol_01k000000000000000000abcde",
    "gogol_01k111111111111111111abcdf",
]
PROJECT = "proj_01k00000000000000000000p1p"
GONE = "proj_01k00000000000000000000p2p"
TOKEN = "tok_01k0000000000000000000t0k0"
WORKSPACE = "0a1b2c3d-0000-4000-8000-00000000beef"


@pytest.fixture
def home(tmp_path: Path) -> str:
    database = Database(tmp_path / "oubliette.db")
    writer = Writer(database)
    writer.start()
    made = [
        operations.PutProject(
            Project(id=PROJECT, name="shop", created_at=1.0, default_workspace_id=WORKSPACE, uid=1)
        ),
        operations.PutProject(
            Project(
                id=GONE,
                name="shed",
                created_at=1.0,
                default_workspace_id=WORKSPACE,
                uid=2,
                deleted_at=2.0,
            )
        ),
        operations.PutWorkspace(Workspace(id=WORKSPACE, project_id=PROJECT, created_at=1.0)),
        operations.PutToken(
            Token(id=TOKEN, digest=b"x" * 32, name="n", scope="read", principal="p", created_at=1.0)
        ),
        *(
            operations.PutSession(
                Session(
                    id=each,
                    project_id=PROJECT,
                    workspace_id=WORKSPACE,
                    principal="p",
                    exploration_id=ids.new_id(ids.EXPLORATION),
                    agent="scripted",
                    status="idle",
                    created_at=1.0,
                    updated_at=1.0,
                )
            )
            for each in SESSIONS
        ),
    ]
    writer.submit(tuple(made)).result(10)
    writer.close().result(10)
    database.close()
    return str(tmp_path)


def test_the_end_of_an_id_is_enough(home: str) -> None:
    assert whole_id(home, "session", "bcde") == SESSIONS[1]
    assert whole_id(home, "token", "t0k0") == TOKEN
    assert whole_id(home, "workspace", "beef") == WORKSPACE


def test_the_beginning_of_an_id_is_enough_with_and_without_its_kind(home: str) -> None:
    assert whole_id(home, "session", "gogol_01k1") == SESSIONS[2]
    assert whole_id(home, "session", "01k1") == SESSIONS[2]
    assert whole_id(home, "workspace", "0A1B2C3D-0000") == WORKSPACE


def test_after_its_kind_only_the_beginning_counts(home: str) -> None:
    with pytest.raises(NotFound):
        whole_id(home, "session", "gogol_bcde")


def test_a_project_is_also_known_by_its_name(home: str) -> None:
    assert whole_id(home, "project", "shop") == PROJECT
    with pytest.raises(NotFound, match="none has this name"):
        whole_id(home, "project", "shed")
    with pytest.raises(NotFound):
        whole_id(home, "project", "0p2p")


def test_what_fits_several_is_an_error_that_names_them(home: str) -> None:
    with pytest.raises(InvalidParameter) as failed:
        whole_id(home, "session", "01k0")
    assert SESSIONS[0] in failed.value.message
    assert SESSIONS[1] in failed.value.message
    assert SESSIONS[2] not in failed.value.message


@pytest.mark.parametrize("given", ["", "abc", "gogol_abc", "../x", "ab%de", "____", "x" * 40, "\0"])
def test_what_is_no_piece_of_an_id_is_refused(home: str, given: str) -> None:
    with pytest.raises(InvalidParameter):
        whole_id(home, "session", given)


def test_a_whole_id_is_taken_as_it_is_even_without_a_home(tmp_path: Path) -> None:
    whole = ids.new_id(ids.SESSION)
    assert whole_id(str(tmp_path / "none"), "session", whole) == whole


def test_a_home_without_a_database_has_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no database yet"):
        whole_id(str(tmp_path), "session", "bcde")


def test_the_lock_of_another_is_nothing_to_wait_for(home: str) -> None:
    with HomeLock(Path(home)):
        assert whole_id(home, "session", "bcde") == SESSIONS[1]


def test_candidates_may_be_given() -> None:
    assert fitting("session", "bcde", SESSIONS) == SESSIONS[1]
    assert fitting("session", SESSIONS[0], []) == SESSIONS[0]
    with pytest.raises(InvalidParameter):
        fitting("session", "gogol_01k0", SESSIONS)
    with pytest.raises(NotFound):
        fitting("session", "nope", SESSIONS)
