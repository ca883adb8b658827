"""Copies the write-ahead log into the database beside the writer, so that no commit waits for it.

SQLite would do it within a commit, with fsync, every 1000 pages. Here a thread of its own does, on
its own connection; the writer's is left with a high threshold for when this one falls behind.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oubliette.runtime.store.database import Database

CHANGES: Final = 500
"""Rows written between two checkpoints; about 1000 pages for usual events."""

_log = logging.getLogger(__name__)


class Checkpointer:
    """The thread. Does nothing for a database in memory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: SimpleQueue[bool] = SimpleQueue()
        self._done = 0
        """`total_changes` at the last wake-up."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; once."""
        if self._database.path is not None:
            self._thread = threading.Thread(
                target=self._run, name="oubliette-checkpoint", daemon=True
            )
            self._thread.start()

    def committed(self, total_changes: int) -> None:
        """Note a commit of the writer, whose connection has changed so many rows in all."""
        if total_changes < self._done:
            self._done = 0  # a new connection
        if total_changes - self._done >= CHANGES:
            self._done = total_changes
            self._queue.put(True)

    def close(self) -> None:
        """End the thread, after the checkpoint that may be under way."""
        if self._thread is not None:
            self._queue.put(False)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while self._queue.get():
            try:
                if connection is None:
                    connection = self._database.connect()
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:
                # The writer meets the same fault and says so; the log only grows meanwhile.
                _log.warning("checkpoint failed: %s", error)
        if connection is not None:
            self._database.release(connection)
