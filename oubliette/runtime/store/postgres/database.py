"""PostgresDatabase, the URL of a database and the connections to it."""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any, Final

import psycopg

from oubliette.config.secret_names import url_to_show
from oubliette.errors import ConfigError, DatabaseTooNew
from oubliette.runtime.store.errors import StorageFault
from oubliette.runtime.store.migrations import POSTGRES_MIGRATIONS, released
from oubliette.runtime.store.postgres.commits import PostgresCommits
from oubliette.runtime.store.postgres.connecting import connect
from oubliette.runtime.store.postgres.connection import (
    CommitNews,
    PostgresConnection,
    translated_errors,
)
from oubliette.runtime.store.postgres.control_connection import interrupt
from oubliette.runtime.store.postgres.log_tail import LogTail
from oubliette.runtime.store.remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from oubliette.records import Event
    from oubliette.runtime.store.postgres.connection import Fence

CONNECT_SECONDS: Final = 5
"""Seconds for a connection to be made."""
OPEN_SECONDS: Final = 10
"""Seconds after which the server ends a transaction of ours that does nothing: readers of other
machines wait for it."""
SILENT_SECONDS: Final = 10
"""Seconds without a sign of life of the server after which a connection is lost (TCP)."""
MIN_VERSION: Final = 130000  # xid8 and its functions
APPLICATION: Final = "oubliette"
"""Name by which the server shows our connections."""
_ALIVE: Final[dict[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": SILENT_SECONDS // 2,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": SILENT_SECONDS * 1000,
    "application_name": APPLICATION,
}
_FLUSHED: Final = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') IN ('off', 'local')"""
"""Wait for the flush of a commit, here and on the synchronous standbys that the server has: one
that takes over has all that was answered. Other settings, which wait for standbys too, are left."""
_WRITING: Final = (
    f"SET idle_in_transaction_session_timeout = {OPEN_SECONDS * 1000}",
    f"SET lock_timeout = {OPEN_SECONDS * 1000}",
    _FLUSHED,
)
_READING: Final = (
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "SET default_transaction_read_only = on",
    f"SET idle_in_transaction_session_timeout = {OPEN_SECONDS * 1000}",
)


_REACH_HINT: Final = (
    "look whether the server runs, and try the URL with psql; in a user or password, / @ : ? # %"
    " and blanks are written percent-encoded (%2F for /)"
)
_FORM_HINT: Final = (
    "write postgresql://USER:PASSWORD@HOST:PORT/NAME with / @ : ? # % and blanks in user and"
    " password percent-encoded (%2F for /), or keep the password in ~/.pgpass"
)


class PostgresDatabase:
    """One database on a PostgreSQL server, migrated to this release's schema.

    Opening runs the migrations, so errors of the address appear at once. It is thread-safe; a
    connection is used by one thread at a time.

    Args:
        url: `postgresql://…`, as libpq takes it.
        durability: Of a file; here each commit is flushed, also on the synchronous standbys.
        fence: Checked in each transaction that writes.
        read_only: Leave its schema as it is; see `version`.

    Raises:
        DatabaseTooNew: a later release wrote it.
        ConfigError: it cannot be reached or used; names the remedy.
    """

    dialect = "postgresql"
    application_name = APPLICATION
    path = None
    """It has no file here."""
    hold_seconds = 5.0
    """Time for which a read waits for a server that is away, as long as a write does."""

    def __init__(
        self,
        url: str,
        *,
        durability: str = "power",
        fence: Fence | None = None,
        read_only: bool = False,
    ) -> None:
        self.durability = durability
        self.fence = fence
        self.lock: AbstractContextManager[object] = contextlib.nullcontext()
        self.remembered = Remembered(alone=False)
        self.news = CommitNews()
        """From its writer to its tails."""
        self._url = url
        self.shown = url_to_show(url)
        """The URL without a password."""
        try:
            connection = self.connect()
        except StorageFault as error:
            raise ConfigError(
                f"store.database: {self.shown} cannot be reached: {error}", hint=_REACH_HINT
            ) from None
        except psycopg.ProgrammingError:
            raise ConfigError(
                f"store.database: {self.shown} is no URL of a database", hint=_FORM_HINT
            ) from None
        with contextlib.closing(connection):
            version = connection.raw.info.server_version
            if version < MIN_VERSION:
                raise ConfigError(
                    f"store.database: PostgreSQL {version // 10000} is too old, 13 is needed"
                )
            try:
                self.version = (check if read_only else migrate)(connection)
            except StorageFault as error:
                raise ConfigError(
                    f"store.database: {self.shown} cannot be used: {error}"
                ) from error

    def connect(self) -> PostgresConnection:
        """Return a connection that may write; return it with `release`.

        Raises:
            StorageFault: none can be made now.
        """
        return self._connect(*_WRITING, client_side=False)

    def connect_read_only(self) -> PostgresConnection:
        """Return a connection that cannot write, for views; return it with `release`.

        Raises:
            StorageFault: none can be made now.
        """
        return self._connect(*_READING, client_side=True)

    def release(self, connection: PostgresConnection) -> None:
        """Close a connection of `connect` or `connect_read_only`."""
        connection.close()

    def interrupt(self, connection: PostgresConnection) -> None:
        """Let a statement fail that another thread executes, also if the server is silent."""
        interrupt(connection.raw)

    def lost(self, connection: PostgresConnection) -> bool:
        """Whether a connection was lost: the server was restarted, for example."""
        return not connection.usable

    def commits(self) -> PostgresCommits:
        return PostgresCommits(self)

    def tail(
        self,
        *,
        on_events: Callable[[list[Event]], object],
        on_failed: Callable[[str], object],
        wanted: Callable[[], bool],
    ) -> LogTail:
        """Return a thread that reads what all machines store; see `LogTail`."""
        return LogTail(self, on_events=on_events, on_failed=on_failed, wanted=wanted)

    def close(self) -> None:
        """Do nothing: the connections are closed by those who opened them."""

    def _connect(self, *settings: str, client_side: bool) -> PostgresConnection:
        with translated_errors():
            raw = connect(self._url, **_ALIVE)
        connection = PostgresConnection(raw, client_side=client_side)
        try:
            for sql in settings:
                connection.execute(sql)
        except BaseException:
            connection.close()
            raise
        return connection


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
