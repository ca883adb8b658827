"""Single writer of the database: a thread that commits all queued requests together.

Each round it drains its queue into a batch: BEGIN IMMEDIATE, a savepoint per request, COMMIT, one
call of `on_batch`. A failed request does not affect the others. When the storage fails (disk full,
I/O error) nothing of the batch is stored or answered: the writer is *paused*, the batch is retried
until it succeeds, and a request that waited too long is refused with the reason. Nothing is
published that is not stored.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Literal

from oubliette.errors import OublietteError, StorageUnavailable, Unavailable
from oubliette.failpoints import failpoint
from oubliette.runtime.store.checkpointer import Checkpointer
from oubliette.runtime.store.errors import storage_fault
from oubliette.runtime.store.execute import perform
from oubliette.runtime.store.operations import (
    DeleteSessionEvents,
    PurgeSession,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.runtime.store.database import Database
    from oubliette.runtime.store.operations import Op, Result

State = Literal["running", "paused", "closed"]

HOLD_SECONDS: Final = 5.0
"""Time that a request waits for the storage to recover before it is refused."""
MAX_BATCH: Final = 256
"""Requests in one commit; bounds the work repeated after a fault."""
_RETRY_FIRST: Final = 0.05
_RETRY_MOST: Final = 1.0
"""Seconds between retries while paused; doubles from the first to the last."""
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

    __slots__ = ("deadline", "error", "future", "ops", "result", "tag")

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


class Writer:
    """Committer of transactions, in the order of submission.

    `on_batch` gets the posted requests, as soon as they are committed or refused; `on_state` gets
    every change of state with its reason. Both are called on the writer's thread and must be quick
    (one `call_soon_threadsafe`). Start with `start`, end with `close`.
    """

    def __init__(
        self,
        database: Database,
        *,
        on_batch: Callable[[list[Request]], object] | None = None,
        on_state: Callable[[State, str], object] | None = None,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        self.state: State = "running"
        self.reason = ""
        """Reason for not running; empty otherwise."""
        self.closed: Future[None] = Future()
        """Done when the thread has ended; with the error that ended it, if any."""
        self._database = database
        self._on_batch = on_batch
        self._on_state = on_state
        self._hold_seconds = hold_seconds
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._waiting: list[Request] = []
        """Taken from the queue and not answered yet."""
        self._closing = False
        self._admission = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="oubliette-store", daemon=True)
        self._connection: sqlite3.Connection | None = None
        self._checkpointer = Checkpointer(database)
        self._shrinking = False
        """Whether free pages are to be returned to the file system when idle."""

    def start(self) -> None:
        """Start the thread; once."""
        self.closed.set_running_or_notify_cancel()  # a waiter must not cancel it
        self._checkpointer.start()
        self._thread.start()

    def submit(self, ops: tuple[Op, ...]) -> Future[Result]:
        """Submit a transaction; the future has its result once it is committed. Any thread.

        The future fails with the operation's own error, or with:
            StorageUnavailable: the storage failed for `hold_seconds`.
            Unavailable: the writer is closed.
        """
        future: Future[Result] = Future()
        self._enqueue(Request(ops, time.monotonic() + self._hold_seconds, future, None))
        return future

    def post(self, ops: tuple[Op, ...], tag: object) -> None:
        """Submit a transaction whose outcome goes to `on_batch`, identified by `tag`. Any thread.

        Raises:
            Unavailable: the writer is closed.
        """
        self._enqueue(Request(ops, time.monotonic() + self._hold_seconds, None, tag))

    def close(self) -> Future[None]:
        """Commit the queue, then end; a paused writer refuses its requests. Any thread.

        Returns `closed`, immediately.
        """
        with self._admission:
            if not self._closing:
                self._closing = True
                if self._thread.ident is None:
                    self.closed.set_result(None)
                else:
                    self._queue.put(None)
        return self.closed

    def _enqueue(self, request: Request) -> None:
        with self._admission:
            if self._closing:
                raise Unavailable("the store is closed")
            self._queue.put(request)

    # ------------------------------------------------------------------ the thread

    def _main(self) -> None:
        failure: BaseException | None = None
        try:
            self._run()
        except BaseException as error:
            _log.exception("the writer of the store failed")
            failure = error
        finally:
            self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        with self._admission:
            self._closing = True
        left = self._waiting
        while not self._queue.empty():
            if (request := self._queue.get()) is not None:
                left.append(request)
        for request in left:
            request.error = Unavailable("the store ended; this may or may not be stored")
        try:
            self._deliver(left)
            self._checkpointer.close()
            self._disconnect()
            self._enter("closed", str(failure) if failure else "")
        finally:
            if failure is None:
                self.closed.set_result(None)
            else:
                self.closed.set_exception(failure)

    def _run(self) -> None:
        ending = False
        while not ending:
            if self._shrinking and self._queue.empty():
                self._shrink()
                continue
            first = self._queue.get()
            if first is None:
                return
            batch = self._waiting = [first]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    ending = True
                    break
                batch.append(following)
            try:
                self._commit(batch)
            except (sqlite3.Error, OSError) as error:
                ending = self._hold(error, ending=ending)
            else:
                failpoint("store.after_commit")
                self._waiting = []
                self._deliver(batch)
                self._after(batch)

    def _commit(self, batch: list[Request]) -> None:
        """Commit the batch; afterwards each request has its result or its error.

        Raises:
            sqlite3.Error, OSError: the storage failed; nothing was stored.
        """
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
            self._disconnect()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._database.connect()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            try:
                self._database.release(self._connection)
            except sqlite3.Error:
                _log.exception("the database connection could not be closed")
            self._connection = None

    # ------------------------------------------------------------------ housekeeping

    def _after(self, batch: list[Request]) -> None:
        """Run the follow-up work of a commit, after its requests are answered."""
        if self._connection is not None:
            self._checkpointer.committed(self._connection.total_changes)
        if not self._shrinking and self._database.path is not None:
            self._shrinking = any(isinstance(op, _FREEING) for one in batch for op in one.ops)

    def _shrink(self) -> None:
        """Free some pages to the file system; only while the queue is empty."""
        self._shrinking = False
        try:
            connection = self._connected()
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if free > _FREE_KEPT:
                connection.execute(f"PRAGMA incremental_vacuum({_SHRINK_STEP})").fetchall()
                self._shrinking = True
        except sqlite3.Error as error:
            _log.warning("free pages could not be given back: %s", error)

    # ------------------------------------------------------------------ paused

    def _hold(self, error: Exception, *, ending: bool) -> bool:
        """Keep old and new requests until a commit succeeds or their time is up.

        Returns whether the writer is to end.
        """
        pause = _RETRY_FIRST
        while True:
            self._pause(error)
            ending = ending or self._gather(time.monotonic() + pause)
            pause = min(pause * 2, _RETRY_MOST)
            try:
                while self._waiting:
                    batch = self._waiting[:MAX_BATCH]
                    self._commit(batch)
                    self._waiting = self._waiting[MAX_BATCH:]
                    self._deliver(batch)
                self._probe()
            except (sqlite3.Error, OSError) as again:
                error = again
                self._refuse(float("inf") if ending else time.monotonic())
                if ending:
                    return True
            else:
                _log.warning("the store is running again")
                self._enter("running", "")
                return ending

    def _pause(self, error: Exception) -> None:
        """Note the fault, or raise it again if it does not concern the storage."""
        reason = storage_fault(error)
        if reason is None:
            raise error
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_FULL) != sqlite3.SQLITE_FULL:
            self._disconnect()  # the connection itself may be broken
        if (self.state, self.reason) != ("paused", reason):
            _log.error("the store is paused: %s", reason)
            self._enter("paused", reason)

    def _gather(self, until: float) -> bool:
        """Collect requests until `until` or the first deadline; True when asked to end."""
        if self._waiting:
            until = min(until, self._waiting[0].deadline)
        while True:
            try:
                request = self._queue.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                return False
            if request is None:
                return True
            self._waiting.append(request)

    def _refuse(self, now: float) -> None:
        """Refuse requests whose time is up at `now`."""
        refused = [request for request in self._waiting if request.deadline <= now]
        if not refused:
            return
        self._waiting = [request for request in self._waiting if request.deadline > now]
        for request in refused:
            request.result = ()
            request.error = StorageUnavailable(
                f"nothing can be stored: {self.reason}",
                hint="free space or mend the disk; the server goes on by itself",
            )
        self._deliver(refused)

    def _probe(self) -> None:
        """Write and delete a value, to check whether the storage works again."""
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

    # ------------------------------------------------------------------ answers

    def _deliver(self, batch: list[Request]) -> None:
        posted: list[Request] = []
        for request in batch:
            if request.future is None:
                posted.append(request)
            elif request.future.set_running_or_notify_cancel():
                if request.error is None:
                    request.future.set_result(request.result)
                else:
                    request.future.set_exception(request.error)
        if posted and self._on_batch is not None:
            self._on_batch(posted)

    def _enter(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason
        if self._on_state is not None:
            self._on_state(state, reason)


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
