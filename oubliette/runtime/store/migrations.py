"""Migration of a database to this release's schema, one numbered file at a time.

`schema/NNNN_name.sql` are run in order, each in one transaction with the new version number, so a
process that ends in between leaves a complete schema of some version. There is no downgrade: an
older release refuses a newer database.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from importlib import resources
from typing import TYPE_CHECKING, Final, NamedTuple

from oubliette.errors import ConfigError, DatabaseTooNew

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

APPLICATION_ID: Final = 0x4F75624C  # "OubL"; identifies our databases (file(1), sqlite.org)
MIGRATIONS: Final = "oubliette.runtime.store"
POSTGRES_MIGRATIONS: Final = "oubliette.runtime.store.postgres"
"""Packages with the schemas' files."""
_NAME: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    sql: str


def released(package: str = MIGRATIONS) -> list[Migration]:
    """The migrations of this release, in order, from version 1 without a gap."""
    folder = resources.files(package) / "schema"
    found = sorted(
        Migration(int(match[1]), entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if (match := _NAME.fullmatch(entry.name)) is not None
    )
    if not found or [step.version for step in found] != list(range(1, len(found) + 1)):
        raise ConfigError("the schema files of this installation are incomplete")
    return found


def statements(sql: str) -> Iterator[str]:
    """Return the single statements of a script; triggers stay whole."""
    part = ""
    for line in sql.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            if part.strip():
                yield part
            part = ""
    if any(line.split("--")[0].strip() for line in part.splitlines()):
        raise ConfigError("a schema file ends in the middle of a statement")


def migrate(connection: sqlite3.Connection, steps: Sequence[Migration]) -> int:
    """Run missing migrations; return the version that the database has now.

    Safe beside another process that does the same: the version is read again under the lock.

    Raises:
        DatabaseTooNew: a later release wrote it.
        ConfigError: the database is another program's.
    """
    newest = steps[-1].version
    while check(connection, newest) < newest:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = check(connection, newest)
            if version == newest:
                connection.execute("COMMIT")
                break
            for statement in statements(steps[version].sql):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return newest


def check(connection: sqlite3.Connection, newest: int) -> int:
    """Return the version of the database; 0 for an empty one.

    Raises:
        DatabaseTooNew: a later release wrote it.
        ConfigError: the database is another program's.
    """
    with _one_view(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (version or objects or application):
        raise ConfigError("this is a database of some other program")
    if version > newest:
        raise DatabaseTooNew(
            f"the database has schema {version}, this release knows up to {newest}",
            hint="start the release that wrote it, or a later one",
        )
    return int(version)


@contextlib.contextmanager
def _one_view(connection: sqlite3.Connection) -> Generator[None]:
    """Read from one snapshot: another process may be migrating it."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
