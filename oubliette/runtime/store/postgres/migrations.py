"""Migration of a PostgreSQL database to this release's schema, one numbered file at a time.

The files and the rules are as for SQLite (see `oubliette.runtime.store.migrations`). An advisory
lock makes machines that start together wait for each other.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError, DatabaseTooNew
from oubliette.runtime.store.migrations import POSTGRES_MIGRATIONS, released
from oubliette.runtime.store.postgres.connection import translated_errors

if TYPE_CHECKING:
    from oubliette.runtime.store.postgres.connection import PostgresConnection

LOCK: Final = zlib.crc32(b"oubliette schema")
"""Key of the advisory lock."""
_VERSIONS: Final = "oubliette_schema"
"""Table with the version; it also identifies our databases."""


def migrate(connection: PostgresConnection) -> int:
    """Run missing migrations; return the version that the database has now.

    Raises:
        DatabaseTooNew: a later release wrote it.
        ConfigError: the database is another program's, or does not keep text as UTF-8.
    """
    steps = released(POSTGRES_MIGRATIONS)
    connection.execute("BEGIN")
    try:
        connection.execute("SELECT pg_advisory_xact_lock(?)", (LOCK,))
        version = _check(connection, steps[-1].version)
        if version == 0:
            connection.execute(f"CREATE TABLE {_VERSIONS} (version BIGINT NOT NULL)")
            connection.execute(f"INSERT INTO {_VERSIONS} VALUES (0)")  # noqa: S608 - ours
        for step in steps[version:]:
            with translated_errors():
                # Whole: where a statement ends, the server knows best (bodies of functions).
                connection.raw.execute(step.sql.encode())
            sql = f"UPDATE {_VERSIONS} SET version = ?"  # noqa: S608 - ours
            connection.execute(sql, (step.version,))
        connection.execute("COMMIT")
    except BaseException:
        if connection.usable:
            connection.execute("ROLLBACK")
        raise
    return steps[-1].version


def check(connection: PostgresConnection) -> int:
    """Return the version of the database; 0 for an empty one.

    Raises:
        DatabaseTooNew: a later release wrote it.
        ConfigError: the database is another program's, or does not keep text as UTF-8.
    """
    return _check(connection, released(POSTGRES_MIGRATIONS)[-1].version)


def _check(connection: PostgresConnection, newest: int) -> int:
    """Return the version of the database; 0 for an empty one."""
    (encoding,) = connection.execute("SHOW server_encoding").fetchone()
    if isinstance(encoding, bytes):  # psycopg decodes nothing of a database in SQL_ASCII
        encoding = encoding.decode("ascii")
    if encoding != "UTF8":
        raise ConfigError(
            f"store.database: the database has the encoding {encoding}, and UTF8 is needed",
            hint="createdb -E UTF8 -T template0",
        )
    (ours, tables) = connection.execute(
        "SELECT to_regclass(?) IS NOT NULL,"
        " (SELECT count(*) FROM pg_tables WHERE schemaname = current_schema())",
        (_VERSIONS,),
    ).fetchone()
    if not ours:
        if tables:
            raise ConfigError(
                "store.database: this is a database of some other program",
                hint="make one for Oubliette alone: createdb oubliette",
            )
        return 0
    sql = f"SELECT version FROM {_VERSIONS}"  # noqa: S608 - ours
    (version,) = connection.execute(sql).fetchone()
    if version > newest:
        raise DatabaseTooNew(
            f"the database has schema {version}, this release knows up to {newest}",
            hint="start the release that wrote it, or a later one",
        )
    return int(version)
