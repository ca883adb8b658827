"""`oubliette store migrate`: from a home to PostgreSQL and back, with the same contents."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.files.home import DATABASE, HomeLock, prepare
from oubliette.runtime.store import Database, queries
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.test_transfer import filled, read

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.command_line import Run

FIRST_WORDS = ("store", "migrate")


@pytest.fixture
def full(home: Path) -> Database:
    prepare(home)
    database = Database(home / DATABASE)
    filled(database)
    return database


@pytest.mark.requires("postgres")
def test_a_home_moves_to_postgres_and_back(
    run: Run, home: Path, full: Database, postgres_url: str, tmp_path: Path
) -> None:
    there = run("--to", postgres_url)
    assert there.code == 0, there.err
    assert "both databases have the same contents" in there.err
    back = run("--from", postgres_url, "--to", f"sqlite:{tmp_path}", "-o", "json")
    assert back.code == 0, back.err
    assert json.loads(back.out)["rows"]["sessions"] == 2
    again = Database(tmp_path / DATABASE)
    assert read(again, queries.sessions) == read(full, queries.sessions)
    assert read(again, queries.log, "s1") == read(full, queries.log, "s1")


def test_a_database_that_has_something_is_left_alone(
    run: Run, home: Path, full: Database, tmp_path: Path
) -> None:
    assert run("--from", f"sqlite:{home}", "--to", f"sqlite:{tmp_path}").code == 0
    refused = run("--from", f"sqlite:{home}", "--to", f"sqlite:{tmp_path}")
    assert refused.code == 1
    assert "not empty" in refused.err
    assert read(Database(tmp_path / DATABASE), queries.project, "proj_1") == samples.project(
        name="Ünïcode 🙂"
    )


def test_a_home_that_a_server_uses_is_not_copied(
    run: Run, home: Path, full: Database, tmp_path: Path
) -> None:
    with HomeLock(home):
        refused = run("--from", f"sqlite:{home}", "--to", f"sqlite:{tmp_path}")
    assert refused.code == 2
    assert f"uses {home}" in refused.err


@pytest.mark.requires("postgres")
def test_a_database_that_a_server_uses_is_not_copied(
    run: Run, postgres_url: str, tmp_path: Path
) -> None:
    from oubliette.runtime.store.postgres.database import PostgresDatabase

    server = PostgresDatabase(postgres_url)
    connection = server.connect()
    refused = run("--from", postgres_url, "--to", f"sqlite:{tmp_path}")
    server.release(connection)
    assert refused.code == 1
    assert "a server uses" in refused.err


@pytest.mark.requires("postgres")
def test_a_connection_that_has_just_been_closed_is_no_server(
    run: Run, home: Path, full: Database, postgres_url: str
) -> None:
    from oubliette.runtime.store.postgres.database import PostgresDatabase

    server = PostgresDatabase(postgres_url)
    closing = threading.Timer(0.5, server.release, (server.connect(),))
    closing.start()
    moved = run("--to", postgres_url)
    closing.join()
    assert moved.code == 0, moved.err


@pytest.mark.parametrize(
    ("address", "said", "code"),
    [
        ("mysql://x", "give sqlite:FOLDER or postgresql://HOST/NAME", 2),
        ("sqlite:", "give sqlite:FOLDER or postgresql://HOST/NAME", 2),
        ("sqlite:/nowhere/at/all", "has no database", 3),
    ],
)
def test_an_address_that_names_no_database_is_refused(
    run: Run, tmp_path: Path, address: str, said: str, code: int
) -> None:
    refused = run("--from", address, "--to", f"sqlite:{tmp_path}")
    assert said in refused.err
    assert refused.code == code
    assert not (tmp_path / DATABASE).exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://someone:s3cret@127.0.0.1:1/x", "cannot be reached: the connection is"),
        ("postgresql://someone:s3/cret@127.0.0.1:1/x", "cannot be reached"),
        ("postgresql://someone:s3cr%et@127.0.0.1:1/x", "is no URL of a database"),
        ("postgresql://someone:s3cr et@127.0.0.1:1/x", "is no URL of a database"),
        ("postgresql://someone:s3@cret@127.0.0.1:1/x", "cannot be reached"),
        ("postgresql://127.0.0.1:1/x?passwd=s3cret", "is no URL of a database"),
        ("postgresql://127.0.0.1:1/x?sslpassword=s3cret", "cannot be reached"),
        ("postgresql://127.0.0.1:s3cret/x", "cannot be reached"),
        ("postgresql://[::1/s3cret", "is no URL of a database"),
        ("postgresq://someone:s3cret@127.0.0.1:1/x", "is no database"),
        ("host=127.0.0.1 password=s3cret", "is no database"),
    ],
)
def test_a_database_that_cannot_be_opened_is_named_without_parts_of_its_password(
    run: Run, tmp_path: Path, url: str, said: str
) -> None:
    pytest.importorskip("psycopg")
    refused = run("--from", url, "--to", f"sqlite:{tmp_path}")
    assert refused.code != 0
    assert "--from: " in refused.err
    assert said in refused.err
    assert "Traceback" not in refused.err
    for part in ("s3", "cret", "cr%et", "cr et"):
        assert part not in refused.err
