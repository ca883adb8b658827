"""Commits of the writer: its connection, one transaction for a batch of requests, freed pages.

A failed request does not affect the others of its batch: each has a savepoint.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from oubliette.errors import OublietteError
from oubliette.failpoints import failpoint
from oubliette.runtime.store.errors import storage_fault
from oubliette.runtime.store.execute import perform
from oubliette.runtime.store.operations import DeleteSessionEvents, PurgeSession

if TYPE_CHECKING:
    from concurrent.futures import Future

    from oubliette.runtime.store.database import Database
    from oubliette.runtime.store.operations import Op, Result

_FREEING: Final = (PurgeSession, DeleteSessionEvents)
_FREE_KEPT: Final = 1000
"""Pages that may stay free: the next events use them."""
_SHRINK_STEP: Final = 200
"""Pages that are freed at a time; a few milliseconds."""
_PROBE: Final = (
    "BEGIN IMMEDIATE",
    "INSERT INTO meta (key, value) VALUES ('probe', hex(zeroblob(65536)))",
    "DELETE FROM meta WHERE key = 'probe'",
)
"""Size that must be writable for the storage to count as working."""

_log = logging.getLogger(__name__)


class Request:
    """Transaction on its way through the writer, then with its outcome."""

    __slots__ = ("deadline", "error", "future", "in_doubt", "ops", "result", "stored", "tag")

    def __init__(
        self, ops: tuple[Op, ...], deadline: float, future: Future[Result] | None, tag: object
    ) -> None:
        self.ops = ops
        self.deadline = deadline
        """Monotonic second after which it is refused while the writer is paused."""
        self.future = future
        self.tag = tag
        """Any value by which the sender identifies it."""
        self.result: Result = ()
        self.error: BaseException | None = None
        """Set if it failed; then nothing of it is stored."""
        self.in_doubt = False
        """Whether its commit was begun and not answered."""
        self.stored = False
        """Whether that commit turned out to have succeeded; then it has its result."""


class Commits(Protocol):
    """Commits of the writer's batches, as `BatchCommits` makes them in SQLite.

    Only the writer's thread calls it after `start`.
    """

    @property
    def shrinkable(self) -> bool:
        """Whether there may be free pages to return to the file system."""
        ...

    def start(self) -> None: ...

    def close(self) -> None: ...

    def commit(self, batch: list[Request]) -> None:
        """Commit the batch; afterwards each request has its result or its error.

        Raises:
            sqlite3.Error, OSError: the storage failed; nothing was stored.
        """
        ...

    def disconnect(self) -> None:
        """Close the connection, which may be broken; the next commit opens another."""
        ...

    def probe(self) -> None:
        """Write and delete a value, to check whether the storage works again."""
        ...

    def after_commit(self, batch: list[Request]) -> None:
        """Run the follow-up work of a commit, after its requests are answered."""
        ...

    def shrink(self) -> None:
        """Free some pages; only while the queue is empty."""
        ...


class BatchCommits:
    """Commits of batches, on one connection; only the writer's thread calls it after `start`.

    A connection that fails is closed, and the next commit opens another.
    """

    def __init__(self, database: Database) -> None:
        self.shrinkable = False
        """Whether there may be free pages to return to the file system."""
        self._database = database
        self._connection: sqlite3.Connection | None = None
        self._checkpointer = Checkpointer(database)

    def start(self) -> None:
        self._checkpointer.start()

    def close(self) -> None:
        """End that thread and close the connection."""
        self._checkpointer.close()
        self.disconnect()

    def commit(self, batch: list[Request]) -> None:
        with self._database.lock:
            connection = self._connected()
            try:
                connection.execute("BEGIN IMMEDIATE")
                if len(batch) == 1:
                    _perform_only(connection, batch[0])
                else:
                    for request in batch:
                        _perform(connection, request)
                failpoint("store.before_commit")
                failpoint("store.commit_io")
                if connection.in_transaction:
                    self._seal(connection, batch)
            except BaseException:
                self._abandon(connection)
                raise

    def _seal(self, connection: sqlite3.Connection, batch: list[Request]) -> None:
        """COMMIT, with invalidated read caches."""
        remembered = self._database.remembered
        caching = remembered.begin(op for request in batch for op in request.ops)
        try:
            connection.execute("COMMIT")
        finally:
            if caching:
                remembered.end()

    def _abandon(self, connection: sqlite3.Connection) -> None:
        """Roll back after a fault; a connection that fails to is closed."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            _log.warning("the transaction could not be rolled back; connecting again")
            self.disconnect()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._database.connect()
        return self._connection

    def disconnect(self) -> None:
        if self._connection is not None:
            try:
                self._database.release(self._connection)
            except sqlite3.Error:
                _log.exception("the database connection could not be closed")
            self._connection = None

    def probe(self) -> None:
        with self._database.lock:
            connection = self._connected()
            try:
                for sql in _PROBE:
                    connection.execute(sql)
                failpoint("store.commit_io")
                connection.execute("COMMIT")
            except BaseException:
                self._abandon(connection)
                raise

    def after_commit(self, batch: list[Request]) -> None:
        if self._connection is not None:
            self._checkpointer.committed(self._connection.total_changes)
        if not self.shrinkable and self._database.path is not None:
            self.shrinkable = any(isinstance(op, _FREEING) for one in batch for op in one.ops)

    def shrink(self) -> None:
        """Free some pages to the file system; only while the queue is empty."""
        self.shrinkable = False
        try:
            connection = self._connected()
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if free > _FREE_KEPT:
                connection.execute(f"PRAGMA incremental_vacuum({_SHRINK_STEP})").fetchall()
                self.shrinkable = True
        except sqlite3.Error as error:
            _log.warning("free pages could not be given back: %s", error)


def _perform_only(connection: sqlite3.Connection, request: Request) -> None:
    """A batch of one needs no savepoint: its failure rolls all of it back."""
    request.error = None
    try:
        request.result = perform(connection, request.ops)
    except Exception as error:
        if storage_fault(error) is not None:
            raise
        request.error = _answerable(error)
        connection.execute("ROLLBACK")


def _perform(connection: sqlite3.Connection, request: Request) -> None:
    request.error = None
    connection.execute("SAVEPOINT request")
    try:
        request.result = perform(connection, request.ops)
    except Exception as error:
        if storage_fault(error) is not None:
            raise
        request.error = _answerable(error)
        connection.execute("ROLLBACK TO request")
    connection.execute("RELEASE request")


def _answerable(error: Exception) -> Exception:
    if not isinstance(error, OublietteError):
        _log.error("a write failed for a reason that is ours", exc_info=error)
    return error


CHANGES: Final = 500
"""Rows written between two checkpoints; about 1000 pages for usual events."""


class Checkpointer:
    """Thread that checkpoints the write-ahead log, so that no commit waits for it.

    SQLite would do it within a commit, with fsync, every 1000 pages. The writer's connection keeps
    a high threshold in case this thread falls behind. Does nothing for an in-memory database.
    """

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
