"""Distinction between faults of the storage and errors of a request."""

from __future__ import annotations

import sqlite3
from typing import Final

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


def storage_fault(error: BaseException) -> str | None:
    """Return why the storage failed, None if `error` is not about the storage."""
    if isinstance(error, sqlite3.Error):
        # Absent on errors that the sqlite3 module itself raises: those are about the request.
        code = getattr(error, "sqlite_errorcode", None)
        return str(error) if isinstance(code, int) and code & 0xFF in _STORAGE else None
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return None
