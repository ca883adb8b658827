"""Checkpoints of the write-ahead log beside the writer, so that no commit waits for one.

SQLite would do it within a commit, with fsync, every 1000 pages. Here a thread does it, on its own
connection; the writer's keeps a high threshold in case this one falls behind.
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
    """Thread that makes checkpoints. Does nothing for an in-memory database."""

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
        """Note a commit of the writer, whose connection has changed this many rows in total."""
        if total_changes < self._done:
            self._done = 0  # a new connection
        if total_changes - self._done >= CHANGES:
            self._done = total_changes
            self._queue.put(True)

    def close(self) -> None:
        """End the thread, after a checkpoint in progress."""
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
                # The writer gets the same error and reports it; until then the log only grows
                _log.warning("checkpoint failed: %s", error)
        if connection is not None:
            self._database.release(connection)
