"""A database with the schema of this release, and connections to it that the test need not close."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg

    from tests.postgres import PostgresServer

WAIT = 20.0
"""Seconds that any single wait in these tests may take."""


@pytest.fixture(scope="session")
def migrated(postgres_server: PostgresServer) -> str:
    """The name of a database to copy."""
    from oubliette.runtime.store.postgres.database import PostgresDatabase

    url = postgres_server.new_database()
    PostgresDatabase(url).close()
    return url.rpartition("@/")[2].partition("?")[0]


@pytest.fixture
def url(postgres_server: PostgresServer, migrated: str) -> Iterator[str]:
    url = postgres_server.new_database(migrated)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def connect(url: str) -> Iterator[Callable[[], psycopg.Connection]]:
    from oubliette.runtime.store.postgres.control_connection import control_connection

    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(control_connection(url, "test")))


@pytest.fixture
def connection(connect: Callable[[], psycopg.Connection]) -> psycopg.Connection:
    return connect()
