"""Path of the database, and its connections."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

import tenacity

from oubliette.errors import ConfigError
from oubliette.runtime.store.errors import remedy
from oubliette.runtime.store.migrations import check, migrate, released
from oubliette.runtime.store.remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from oubliette.runtime.store.migrations import Migration

MEMORY: Final = ":memory:"
_BUSY_SECONDS: Final = 2.0
"""Timeout for another process' lock; then it is a fault like a full disk."""
_READ_CACHE_KB: Final = 256
"""Pages of cache for each read-only connection."""
_WAL_KEEP_BYTES: Final = 64 * 1024 * 1024
"""A larger write-ahead log is truncated after a checkpoint."""
_WAL_MOST_PAGES: Final = 16_384
"""Pages in the write-ahead log at which a commit copies them itself (see `checkpointer`)."""

Durability = Literal["process", "power"]


class Database:
    """One database file (or `:memory:`), migrated to this release's schema.

    Opening runs the migrations, so errors of the file appear at once. The file and its two
    companions (`-wal`, `-shm`) are accessible to the owner only.

    In memory, all share one connection under one lock: a reader never sees half a batch, as with a
    file, and there is no second implementation.

    Raises:
        DatabaseTooNew: a later release wrote it.
        ConfigError: the file cannot be opened, or is no database of ours.
    """

    hold_seconds = 0.0
    """A file is not away for a while: a read of it fails at once."""

    def __init__(
        self,
        path: str | Path = MEMORY,
        *,
        durability: Durability = "process",
        migrations: Sequence[Migration] | None = None,
        read_only: bool = False,
    ) -> None:
        steps = released() if migrations is None else migrations
        self.path = None if str(path) == MEMORY else Path(path)
        self.durability = durability
        self.lock: AbstractContextManager[object] = contextlib.nullcontext()
        """Held during every batch and every query of an in-memory database."""
        self.remembered = Remembered(alone=not read_only)
        self._shared: sqlite3.Connection | None = None
        if self.path is None:
            self.lock = threading.Lock()
            self._shared = _connect(None)
            self.version = migrate(self._shared, steps)
            return
        if not read_only:
            _create(self.path)
        try:
            with contextlib.closing(_connect(self.path)) as connection:
                # before anything of it is changed
                self.version = check(connection, steps[-1].version)
            if read_only:
                return
            with contextlib.closing(self.connect()) as connection:
                self.version = migrate(connection, steps)
        except sqlite3.Error as error:
            raise ConfigError(
                f"{self.path}: cannot be used as the database: {error}",
                hint=remedy(error, self.path),
            ) from error

    def connect(self) -> sqlite3.Connection:
        """Return a connection that may write; return it with `release`."""
        if self._shared is not None:
            return self._shared
        assert self.path is not None
        connection = _connect(self.path)
        try:
            # Only effective before the first table; lets session_cleanup free space.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _write_ahead(connection)
            level = "FULL" if self.durability == "power" else "NORMAL"
            connection.execute(f"PRAGMA synchronous = {level}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEEP_BYTES}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_MOST_PAGES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def connect_read_only(self) -> sqlite3.Connection:
        """Return a connection that cannot write; return it with `release`."""
        if self._shared is not None:
            return self._shared
        # Not mode=ro: that cannot recover the log of a process that was killed.
        assert self.path is not None
        connection = _connect(self.path)
        connection.execute("PRAGMA query_only = ON")
        # There are several, and the system's cache has the pages that they do not keep.
        connection.execute(f"PRAGMA cache_size = -{_READ_CACHE_KB}")
        return connection

    def release(self, connection: sqlite3.Connection) -> None:
        """Close a connection of `connect` or `connect_read_only`."""
        if connection is not self._shared:
            connection.close()

    def interrupt(self, connection: sqlite3.Connection) -> None:
        """Let a statement fail that another thread executes."""
        connection.interrupt()

    def lost(self, connection: sqlite3.Connection) -> bool:
        """Whether a connection cannot be used any more; a file's always can."""
        del connection
        return False

    def close(self) -> None:
        """Close an in-memory database; files need nothing."""
        if self._shared is not None:
            self._shared.close()


def _connect(path: Path | None) -> sqlite3.Connection:
    # mode=rw: a missing file is a fault, not a reason to create an empty one.
    name = MEMORY if path is None else f"file:{quote(os.fspath(path))}?mode=rw"
    connection = sqlite3.connect(
        name,
        uri=path is not None,
        timeout=_BUSY_SECONDS,
        isolation_level=None,  # explicit BEGIN
        check_same_thread=False,  # one thread at a time, but not always the same
        cached_statements=256,
    )
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _is_busy(error: BaseException) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY  # the extended codes have the reason


@tenacity.retry(
    retry=tenacity.retry_if_exception(_is_busy),
    wait=tenacity.wait_random(0, 0.02),
    stop=tenacity.stop_after_delay(_BUSY_SECONDS),
    reraise=True,
)
def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log; the setting is persistent.

    SQLite calls no busy handler for the lock that this takes: it fails at once if another process
    does the same (sqlite.org/c3ref/busy_handler.html).
    """
    connection.execute("PRAGMA journal_mode = WAL")


def _create(path: Path) -> None:
    """Make the file 0600 before SQLite makes it by the umask; its companions get the same mode.

    An existing file is not opened here: closing any descriptor of it would drop the locks that
    this process' other connections hold (fcntl(2)).
    """
    try:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(path, flags, 0o600))
            return
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{path}: cannot be used as the database: not a regular file")
        if mode & 0o077:
            path.chmod(0o600)
    except FileExistsError:
        return  # another process was first
    except OSError as error:
        raise ConfigError(f"{path}: cannot be used as the database: {error.strerror}") from error
