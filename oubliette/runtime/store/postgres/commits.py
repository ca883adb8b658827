"""Commits of the writer to PostgreSQL: one transaction for a batch of requests.

A batch is executed as a whole first, in a pipeline, without waiting for statements that have no
result; the COMMIT is in the pipeline too, and the server skips it after a statement that failed.
Only if a request fails is the batch rolled back and executed again, each request with a savepoint
of its own. When the connection is lost while it commits, the outcome is looked up before anything
is repeated: the server knows the state of each transaction by its number.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from oubliette.errors import InvalidParameter, OublietteError
from oubliette.failpoints import failpoint
from oubliette.runtime.store.errors import StorageFault, UniqueClash, storage_fault
from oubliette.runtime.store.execute import perform
from oubliette.runtime.store.operations import (
    AppendEvents,
    DeleteSessionEvents,
    PurgeSession,
)
from oubliette.runtime.store.postgres.connection import translated_errors
from oubliette.runtime.store.postgres.log_batch import LogBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.runtime.store.batch_commits import Request
    from oubliette.runtime.store.operations import Op
    from oubliette.runtime.store.postgres.connection import Connects, PostgresConnection

CHANNEL: Final = "oubliette_log"
"""Channel on which machines are notified that there are new events."""

# A notification has nothing to flush to the disk, but its transaction has a number, and would.
_NOTIFY: Final = f"""
SELECT set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', ?)"""
_BEGIN: Final = """
SELECT pg_current_xact_id()::text::bigint, (SELECT "offset" FROM log_order)"""
_RUN: Final = """
SELECT concat_ws(' ', left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
  pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time())"""
"""Run of the server, which a failover, a restart and the recovery from a crash end: numbers of
transactions that had stored nothing may be given again by the next one."""
_NO_PROBE: Final = "DELETE FROM meta WHERE key = 'probe'"
_PROBE: Final = """
INSERT INTO meta (key, value)
SELECT 'probe', string_agg(md5(number::text), '') FROM generate_series(1, 2048) AS number"""
"""Writes 64 KiB that cannot be compressed: as much room as some commits take."""
_CUTTING: Final = (DeleteSessionEvents, PurgeSession)
_REFUSED: Final = (OublietteError, UniqueClash)

_log = logging.getLogger(__name__)


class _Number(NamedTuple):
    """Number of a transaction, which another run of the server may give again."""

    transaction: int
    run: str
    """Run of the server, see `_RUN`."""


class PostgresCommits:
    """Commits of batches, on one connection; only the writer's thread calls it after `start`.

    A connection that fails is closed, and the next commit opens another.
    """

    shrinkable = False
    """Freed pages are the server's concern."""

    def __init__(self, database: Connects) -> None:
        self._database = database
        self._connection: PostgresConnection | None = None
        self._run = ""
        """Run of the server that the connection is to; empty before its first transaction."""
        self._in_doubt: tuple[_Number, list[Request]] | None = None
        """Transaction whose COMMIT was not answered, and its requests."""

    def start(self) -> None:
        """Do nothing: there is no thread beside the writer's."""

    def close(self) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._run = ""

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
            self._settle_at_once()
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
            for sql in (_NO_PROBE, _PROBE, _NO_PROBE, "COMMIT"):
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
                logs = LogBatch(connection)
                begun = self._begin(connection)
                logs.read(whole)  # asked together with the beginning
                number, offset = begun()
                logs.number(number.transaction, offset)
                results = [_performed(connection, logs, request.ops) for request in batch]
                logs.flush()
                for request, result in zip(batch, results, strict=True):
                    request.result, request.error = result, None
                self._seal(connection, number, batch, told=logs.appended)
        except Exception as error:
            if storage_fault(error) is not None:
                raise
            if not isinstance(error, _REFUSED):
                _log.debug("a batch is executed one by one: %s", error)
            self._not_in_doubt()  # the server has answered, and skipped the COMMIT
            connection.execute("ROLLBACK")
            return False
        self._sealed(told=logs.appended)
        return True

    def _one_by_one(self, connection: PostgresConnection, batch: list[Request]) -> None:
        logs = LogBatch(connection)
        number, offset = self._begin(connection)()
        logs.number(number.transaction, offset)
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
        # In one round trip: if the connection is lost before both are answered, the server is asked
        # whether the commit succeeded.
        with translated_errors(), connection.raw.pipeline():
            self._seal(connection, number, batch, told=appended)
        self._sealed(told=appended)

    def _begin(self, connection: PostgresConnection) -> Callable[[], tuple[_Number, int]]:
        """Begin a transaction; the result returns its number and the offset of the log."""
        run = self._run = self._run or connection.execute(_RUN).fetchone()[0]
        connection.execute("BEGIN")
        fence = self._database.fence
        fenced = None if fence is None else fence.check(connection)
        rows = connection.execute(_BEGIN)

        def begun() -> tuple[_Number, int]:
            transaction, offset = rows.fetchone()
            if fenced is not None:
                fenced()
            return _Number(transaction, run), offset

        return begun

    def _seal(
        self,
        connection: PostgresConnection,
        number: _Number,
        batch: list[Request],
        *,
        told: bool,
    ) -> None:
        """Execute the COMMIT in the pipeline that is open; it is answered at the end of that."""
        failpoint("store.before_commit")
        failpoint("store.commit_io")
        self._in_doubt = number, batch
        for request in batch:
            request.in_doubt = True
        connection.execute("COMMIT")
        if told:
            # Not in the transaction: it would hold a lock of all machines while it commits.
            connection.execute(_NOTIFY, (self._database.news.token,))

    def _sealed(self, *, told: bool) -> None:
        """Note that the commit was answered."""
        self._in_doubt = None
        if told:
            self._database.news.committed()

    # ------------------------------------------------------------------ in doubt

    def _settle_doubt(self, connection: PostgresConnection) -> None:
        """Find out whether the commit that was not answered succeeded, and mark its requests.

        Raises:
            StorageFault: the server has not yet noticed that the connection was lost.
        """
        if self._in_doubt is None:
            return
        number, requests = self._in_doubt
        try:
            (status,) = connection.execute(
                "SELECT pg_xact_status(?::text::xid8)", (str(number.transaction),)
            ).fetchone()
        except InvalidParameter:
            status = "aborted"  # another run of the server has taken over, which does not know it
        if status == "in progress":
            raise StorageFault("the last commit is still being carried out")
        if status == "committed" and connection.execute(_RUN).fetchone()[0] != number.run:
            status = _status_after_recovery(connection, requests)
        self._not_in_doubt()
        for request in requests:
            request.stored = status == "committed"
        if status == "committed":
            connection.execute(_NOTIFY, (self._database.news.token,))
            self._database.news.committed()

    def _settle_at_once(self) -> None:
        """Find out what became of the commit if the server has answered, with an error of its own.

        It has skipped the COMMIT then, unless the error is that of the notification after it.
        """
        connection = self._connection
        if (
            self._in_doubt is None
            or connection is None
            or connection.raw.pgconn.status != psycopg.pq.ConnStatus.OK
        ):
            return
        with contextlib.suppress(StorageFault):  # the next commit finds it out
            connection.execute("ROLLBACK")
            self._settle_doubt(connection)

    def _not_in_doubt(self) -> None:
        """Note that the outcome of the last commit is known."""
        _, requests = self._in_doubt or (None, ())
        self._in_doubt = None
        for request in requests:
            request.in_doubt = False


def _status_after_recovery(connection: PostgresConnection, requests: list[Request]) -> str:
    """Whether a transaction is stored whose number another one may have been given since.

    Its first event decides. Without events it is repeated: what it has is a state to be stored,
    which is the same afterwards.
    """
    for request in requests:
        for operation, result in zip(request.ops, request.result, strict=True):
            if type(operation) is AppendEvents and result:
                first = result[0]
                found = connection.execute(
                    "SELECT 1 FROM events WHERE seq = ? AND session_id = ? AND idx = ?",
                    (first.seq, first.session_id, first.index),
                ).fetchone()
                return "aborted" if found is None else "committed"
    return "aborted"


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
