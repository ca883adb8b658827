"""A database in a file and one in memory, with a writer that may not have been started yet."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from oubliette import failpoints
from oubliette.runtime.store import MEMORY, Database, Reader, Writer
from oubliette.runtime.store.operations import Op, Result
from tests.unit.runtime.store import blocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oubliette.runtime.store.postgres.database import PostgresDatabase

WAIT = 10.0
"""Seconds that any single wait in these tests may take."""


class Store:
    """A database with both its ends, for tests without a loop."""

    def __init__(self, database: Database | PostgresDatabase, **options) -> None:
        self.database = database
        self.writer = Writer(database, **options)
        self.reader = Reader(database, threads=2)
        self.started = False

    def start(self) -> Store:
        self.writer.start()
        self.started = True
        return self

    def write(self, *ops: Op) -> Result:
        """Commit one transaction; its error is raised."""
        return self.writer.submit(ops).result(WAIT)

    def read(self, query, *args, **options):
        return blocking.read(self.reader, query, *args, **options)

    def close(self) -> None:
        self.writer.close()
        if self.started:
            with contextlib.suppress(RuntimeError):
                self.writer.closed.result(WAIT)
        self.reader.close()
        self.database.close()


@pytest.fixture(
    params=[
        "file",
        "memory",
        pytest.param("postgres", marks=pytest.mark.requires("postgres")),
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database | PostgresDatabase:
    if request.param == "postgres":
        from oubliette.runtime.store.postgres.database import PostgresDatabase

        return PostgresDatabase(request.getfixturevalue("postgres_url"))
    return Database(MEMORY if request.param == "memory" else tmp_path / "store.db")


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with contextlib.closing(Store(database).start()) as store:
        yield store


@pytest.fixture(autouse=True)
def no_failpoints() -> Iterator[None]:
    yield
    failpoints.activate("")
