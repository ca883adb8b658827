"""Distinction between faults of the storage and errors of a request."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_STORAGE: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
    }
)


class StorageFault(OSError):
    """PostgreSQL cannot be used now: it is away, full, or ended the transaction."""


class UniqueClash(Exception):
    """In PostgreSQL another row has the same unique value."""


CLASHES: Final = (sqlite3.IntegrityError, UniqueClash)
"""Errors of a statement whose row has the unique value of another one."""
FAULTS: Final = (sqlite3.Error, OSError)
"""Errors of a connection that `storage_fault` distinguishes."""


def is_damage(error: BaseException) -> bool:
    """Return whether SQLite has found a damaged file, or one that is no database."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def mending(path: Path) -> str:
    """Return what to do about a database file that is damaged."""
    return (
        f"stop the server, move {path.name}, {path.name}-wal and {path.name}-shm away together, and"
        " put a backup in their place; without one, docs/storage.md (a damaged database) has the"
        " commands that take out what can be read"
    )


def remedy(error: BaseException, path: Path) -> str:
    """Return what to do about a database file that cannot be used."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if is_damage(error):
        return mending(path)
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
        return f"{path.parent} and its files have to belong to this user and be writable"
    if code == sqlite3.SQLITE_BUSY:
        return "another program has it locked; the server is to be the only one that writes to it"
    # SQLite calls many refusals of the disk an I/O error, of a full one too.
    return (
        f"free some space at {path.parent}, raise the limit of a file's size (ulimit -f), or look"
        " at the disk; nothing was changed"
    )


def storage_fault(error: BaseException) -> str | None:
    """Return why the storage failed, None if `error` is not about the storage."""
    if isinstance(error, sqlite3.Error):
        # Absent on errors that the sqlite3 module itself raises: those are about the request.
        code = getattr(error, "sqlite_errorcode", None)
        return str(error) if isinstance(code, int) and code & 0xFF in _STORAGE else None
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return None
