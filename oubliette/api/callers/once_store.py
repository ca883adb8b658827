"""OnceStore, answers of tool calls in an SQLite file, so that a call is carried out once.

A request that is delivered again, after its program or the server was killed, is answered from
here. What a tool writes through `Call.transaction` is committed together with its answer: neither
is there without the other.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import anyio

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

KEEP_SECONDS: Final = 30 * 86_400.0
"""Seconds that answers are kept; requests are open for minutes."""
BUSY_SECONDS: Final = 30.0  # for another writer of the file to finish
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS oubliette_answers ("
    " request_id TEXT PRIMARY KEY, result TEXT, error TEXT, answered_at REAL NOT NULL)"
)


class OnceStore:
    """File of answers. Its methods block: call them in a worker thread.

    Args:
        path: The file, which may be the program's own database; one table is added.
    """

    def __init__(self, path: Path) -> None:
        import sqlite3

        self.path = path
        self._lock = threading.Lock()
        self.turns = anyio.Semaphore(1)
        """Held by the call that writes."""
        self._exists = sqlite3.IntegrityError
        try:
            self._database = self._connect()
            self._database.execute(_SCHEMA)
            oldest = time.time() - KEEP_SECONDS
            self._database.execute("DELETE FROM oubliette_answers WHERE answered_at < ?", (oldest,))
        except sqlite3.Error as error:
            raise ConfigError(
                f"once={str(path)!r}: {error}", hint="name a file that SQLite can write"
            ) from error

    def _connect(self, seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
        import sqlite3

        database = sqlite3.connect(
            self.path, timeout=seconds, isolation_level=None, check_same_thread=False
        )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        return database

    def answer(self, request_id: str) -> dict[str, Any] | None:
        """Return the kept answer: `result` or `error`; None if the call was not carried out."""
        with self._lock:
            row = self._database.execute(
                "SELECT result, error FROM oubliette_answers WHERE request_id = ?", (request_id,)
            ).fetchone()
        if row is None:
            return None
        result, error = row
        return {"error": error} if error is not None else {"result": json.loads(result)}

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def keep(self, request_id: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Keep an answer unless there is one; return the one that is kept."""
        with self._lock, contextlib.suppress(self._exists):
            self.insert(self._database, request_id, answer)
        return self.answer(request_id) or answer

    def open(self, seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
        """Return a connection to the file, within a transaction that has the right to write.

        Args:
            seconds: For another writer of the file to finish.
        """
        database = self._connect(seconds)
        try:
            database.execute("BEGIN IMMEDIATE")
        except BaseException:
            database.close()
            raise
        return database

    @staticmethod
    def insert(database: sqlite3.Connection, request_id: str, answer: dict[str, Any]) -> None:
        """Write an answer.

        Raises:
            sqlite3.IntegrityError: there is one.
        """
        error = answer.get("error")
        result = None if error is not None else json.dumps(answer.get("result"))
        database.execute(
            "INSERT INTO oubliette_answers VALUES (?, ?, ?, ?)",
            (request_id, result, error, time.time()),
        )
