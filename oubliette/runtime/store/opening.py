"""The database of a configuration: a file of SQLite, or a URL of PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.errors import ConfigError
from oubliette.runtime.store.database import Database

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.store.database import Durability
    from oubliette.runtime.store.postgres.database import PostgresDatabase


def driver_missing(error: ImportError) -> ConfigError:
    return ConfigError(
        f"store.database: the driver of PostgreSQL is missing: {error}",
        hint="pip install 'oubliette-agents[postgres]'",
    )


def open_database(
    url: str, path: Path, *, durability: Durability = "process", read_only: bool = False
) -> Database | PostgresDatabase:
    """Open the database at `url`, or the file at `path` if that is empty. Blocks.

    Raises:
        DatabaseTooNew: a later release wrote it.
        ConfigError: it cannot be used, or the driver is not installed; names the remedy.
    """
    if not url:
        return Database(path, durability=durability, read_only=read_only)
    try:
        # Slow to import, and not installed where it was not asked for.
        from oubliette.runtime.store.postgres.database import PostgresDatabase
    except ImportError as error:
        raise driver_missing(error) from error
    return PostgresDatabase(url, durability=durability, read_only=read_only)
