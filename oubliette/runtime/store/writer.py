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

from oubliette.errors import StorageUnavailable, Unavailable
from oubliette.failpoints import failpoint
from oubliette.runtime.store.batch_commits import BatchCommits, Commits, Request
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.errors import FAULTS, storage_fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.runtime.store.operations import Op, Result
    from oubliette.runtime.store.postgres.database import PostgresDatabase

State = Literal["running", "paused", "closed"]

HOLD_SECONDS: Final = 5.0
"""Time that a request waits for the storage to recover before it is refused."""
MAX_BATCH: Final = 256
"""Requests in one commit; bounds the work repeated after a fault."""
_RETRY_FIRST: Final = 0.05
_RETRY_MOST: Final = 1.0
"""Seconds between retries while paused; doubles from the first to the last."""

_log = logging.getLogger(__name__)


class Writer:
    """Committer of transactions, in the order of submission.

    `on_batch` gets the posted requests, as soon as they are committed or refused; `on_state` gets
    every change of state with its reason. Both are called on the writer's thread and must be quick
    (one `call_soon_threadsafe`). Start with `start`, end with `close`.
    """

    def __init__(
        self,
        database: Database | PostgresDatabase,
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
        self._on_batch = on_batch
        self._on_state = on_state
        self._hold_seconds = hold_seconds
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._waiting: list[Request] = []
        """Taken from the queue and not answered yet."""
        self._closing = False
        self._admission = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="oubliette-store", daemon=True)
        self._commits: Commits = (
            BatchCommits(database) if isinstance(database, Database) else database.commits()
        )

    def start(self) -> None:
        """Start the thread; once."""
        self.closed.set_running_or_notify_cancel()  # a waiter must not cancel it
        self._commits.start()
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
            self._commits.close()
            self._enter("closed", str(failure) if failure else "")
        finally:
            if failure is None:
                self.closed.set_result(None)
            else:
                self.closed.set_exception(failure)

    def _run(self) -> None:
        ending = False
        while not ending:
            if self._commits.shrinkable and self._queue.empty():
                self._commits.shrink()
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
                self._commits.commit(batch)
            except FAULTS as error:
                ending = self._hold(error, ending=ending)
            else:
                failpoint("store.after_commit")
                self._waiting = []
                self._deliver(batch)
                self._commits.after_commit(batch)

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
                    self._commits.commit(batch)
                    self._waiting = self._waiting[MAX_BATCH:]
                    self._deliver(batch)
                self._commits.probe()
            except FAULTS as again:
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
            self._commits.disconnect()  # the connection itself may be broken
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
            if request.stored:
                continue
            request.result = ()
            said = "it may be stored or not" if request.in_doubt else "nothing can be stored"
            request.error = StorageUnavailable(
                f"{said}: {self.reason}",
                hint="mend the disk or the database; the server then goes on without a restart",
            )
        self._deliver(refused)

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
