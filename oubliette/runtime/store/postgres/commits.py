"""Commits of the writer to PostgreSQL: one transaction for a batch of requests.

A batch is executed as a whole first, in a pipeline, without waiting for statements that have no
result. Only if a request fails is it rolled back and executed again, each request with a savepoint
of its own. When the connection is lost while it commits, the outcome is looked up before anything
is repeated: the server knows the state of each transaction by its number.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from oubliette.errors import InvalidParameter, OublietteError
from oubliette.failpoints import failpoint
from oubliette.runtime.store.errors import StorageFault, UniqueClash, storage_fault
from oubliette.runtime.store.execute import perform
from oubliette.runtime.store.log_order import EVENTS
from oubliette.runtime.store.operations import (
    AppendEvents,
    DeleteSessionEvents,
    PurgeSession,
)
from oubliette.runtime.store.postgres.connection import translated_errors
from oubliette.runtime.store.postgres.log_batch import LogBatch

if TYPE_CHECKING:
    from oubliette.runtime.store.batch_commits import Request
    from oubliette.runtime.store.operations import Op
    from oubliette.runtime.store.postgres.connection import Connects, PostgresConnection

CHANNEL: Final = "oubliette_log"
"""Channel on which machines are notified that there are new events."""

_NOTIFY: Final = f"NOTIFY {CHANNEL}"
_BEGIN: Final = """
SELECT pg_current_xact_id()::text::bigint, (SELECT "offset" FROM log_order)"""
_PROBE: Final = (
    "DELETE FROM meta WHERE key = 'probe'",
    "INSERT INTO meta (key, value) VALUES ('probe', repeat('0', 65536))",
    "DELETE FROM meta WHERE key = 'probe'",
    "COMMIT",
)
_CUTTING: Final = (DeleteSessionEvents, PurgeSession)
_REFUSED: Final = (OublietteError, UniqueClash)

_log = logging.getLogger(__name__)


class PostgresCommits:
    """Commits of batches, on one connection; only the writer's thread calls it after `start`.

    A connection that fails is closed, and the next commit opens another.
    """

    shrinkable = False
    """Freed pages are the server's concern."""

    def __init__(self, database: Connects) -> None:
        self._database = database
        self._connection: PostgresConnection | None = None
        self._in_doubt: tuple[int, list[Request]] | None = None
        """Transaction whose COMMIT was not answered, and its requests."""

    def start(self) -> None:
        """Do nothing: there is no thread beside the writer's."""

    def close(self) -> None:
        """Close the connection."""
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection, which may be broken; the next commit opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def commit(self, batch: list[Request]) -> None:
        """Commit the batch; afterwards each request has its result or its error.

        Raises:
            StorageFault: the database cannot be used now. Nothing was stored, or whether it was is
                found out by the next commit.
        """
        try:
            connection = self._connected()
            self._settle_doubt(connection)
            left = [request for request in batch if not request.stored]
            if left and not self._try_whole(connection, left):
                self._one_by_one(connection, left)
        except BaseException:
            self.disconnect()
            raise

    def probe(self) -> None:
        """Write and delete a value, to check whether the database works again."""
        try:
            connection = self._connected()
            connection.execute("BEGIN")
            fence = self._database.fence
            if fence is not None:  # a node that may have lost its right to write stays paused
                fence.check(connection)()
            for sql in _PROBE:
                connection.execute(sql)
        except BaseException:
            self.disconnect()
            raise

    def after_commit(self, batch: list[Request]) -> None:
        """Do nothing; SQLite makes checkpoints here."""

    def shrink(self) -> None:
        """Do nothing; SQLite frees pages here."""

    def _connected(self) -> PostgresConnection:
        if self._connection is None:
            self._connection = self._database.connect()
        return self._connection

    # ------------------------------------------------------------------ one transaction

    def _try_whole(self, connection: PostgresConnection, batch: list[Request]) -> bool:
        """Commit all requests in a pipeline; False if one of them fails, and nothing is stored."""
        whole = [op for request in batch for op in request.ops]
        try:
            with translated_errors(), connection.raw.pipeline():
                transaction, logs = self._begin(connection)
                logs.read(whole)
                results = [_performed(connection, logs, request.ops) for request in batch]
                logs.flush()
                with translated_errors():
                    connection.raw.execute("SELECT 1").fetchone()  # all errors are here by now
        except Exception as error:
            if storage_fault(error) is not None:
                raise
            if not isinstance(error, _REFUSED):
                _log.debug("a batch is executed one by one: %s", error)
            connection.execute("ROLLBACK")
            return False
        for request, result in zip(batch, results, strict=True):
            request.result, request.error = result, None
        self._seal(connection, transaction, batch, told=logs.appended)
        return True

    def _one_by_one(self, connection: PostgresConnection, batch: list[Request]) -> None:
        transaction, logs = self._begin(connection)
        appended = False
        for request in batch:
            request.error = None
            connection.execute("SAVEPOINT request")
            try:
                request.result = _performed(connection, logs, request.ops)
                logs.flush()
                appended = appended or logs.appended
            except Exception as error:
                if storage_fault(error) is not None:
                    raise
                request.error = _answerable(error)
                connection.execute("ROLLBACK TO request")
                # The seqs that were given are not given again: another number of events is enough.
                logs = logs.after_rollback()
            connection.execute("RELEASE request")
        self._seal(connection, transaction, batch, told=appended)

    def _begin(self, connection: PostgresConnection) -> tuple[int, LogBatch]:
        connection.execute("BEGIN")
        fence = self._database.fence
        fenced = None if fence is None else fence.check(connection)
        transaction, offset = connection.execute(_BEGIN).fetchone()
        if fenced is not None:
            fenced()
        return transaction, LogBatch(connection, transaction * EVENTS + offset)

    def _seal(
        self,
        connection: PostgresConnection,
        transaction: int,
        batch: list[Request],
        *,
        told: bool,
    ) -> None:
        failpoint("store.before_commit")
        failpoint("store.commit_io")
        self._in_doubt = transaction, batch
        for request in batch:
            request.in_doubt = True
        # In one round trip: if the connection is lost before both are answered, the server is asked
        # whether the commit succeeded.
        with translated_errors(), connection.raw.pipeline():
            connection.execute("COMMIT")
            if told:
                # Not in the transaction: it would hold a lock of all machines while it commits.
                connection.execute(_NOTIFY)
        self._in_doubt = None

    # ------------------------------------------------------------------ in doubt

    def _settle_doubt(self, connection: PostgresConnection) -> None:
        """Find out whether the commit that was not answered succeeded, and mark its requests.

        Raises:
            StorageFault: the server has not yet noticed that the connection was lost.
        """
        if self._in_doubt is None:
            return
        transaction, requests = self._in_doubt
        try:
            (status,) = connection.execute(
                "SELECT pg_xact_status(?::text::xid8)", (str(transaction),)
            ).fetchone()
        except InvalidParameter:
            status = "aborted"  # another server took over, which does not know it
        if status == "in progress":
            raise StorageFault("the last commit is still being carried out")
        self._in_doubt = None
        for request in requests:
            request.in_doubt = False
            request.stored = status == "committed"
        if status == "committed":
            connection.execute(_NOTIFY)


def _performed(
    connection: PostgresConnection, logs: LogBatch, ops: tuple[Op, ...]
) -> tuple[Any, ...]:
    results: list[Any] = []
    for operation in ops:
        if type(operation) is AppendEvents:
            results.append(logs.append(operation))
            continue
        if isinstance(operation, _CUTTING):
            logs.flush()
            logs.forget(operation.session_id)
        results += perform(connection, (operation,))
    return tuple(results)


def _answerable(error: Exception) -> Exception:
    if not isinstance(error, OublietteError):
        _log.error("a write failed for a reason that is ours", exc_info=error)
    return error
