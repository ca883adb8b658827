"""The PostgreSQL server of the tests: each test has a database, and may end a server of its own."""

from __future__ import annotations

import psycopg
import pytest

from tests.postgres import PostgresServer

pytestmark = pytest.mark.requires("postgres")


def test_each_test_has_an_empty_database_of_its_own(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    other = postgres_server.new_database()
    with psycopg.connect(postgres_url) as one, psycopg.connect(other) as two:
        one.execute("CREATE TABLE mine (id integer)")
        assert two.execute("SELECT to_regclass('mine')").fetchone() == (None,)
    postgres_server.drop_database(other)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_committed_is_there_after_an_end_and_a_start(
    own_postgres: PostgresServer, end: str
) -> None:
    own_postgres.execute("CREATE TABLE kept AS SELECT 7 AS id")
    getattr(own_postgres, end)()
    with pytest.raises(psycopg.OperationalError):
        own_postgres.execute("SELECT 1")
    own_postgres.start()
    assert own_postgres.execute("SELECT id FROM kept") == [(7,)]


def test_a_paused_server_answers_when_it_goes_on(own_postgres: PostgresServer) -> None:
    own_postgres.pause()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own_postgres.url(), connect_timeout=2)
    own_postgres.resume()
    assert own_postgres.execute("SELECT 1") == [(1,)]
