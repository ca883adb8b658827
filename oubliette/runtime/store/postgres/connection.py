"""PostgresConnection, which takes the store's SQL and gives PostgreSQL's errors a meaning."""

from __future__ import annotations

import contextlib
import re
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import psycopg
from psycopg import errors

from oubliette.errors import InvalidParameter
from oubliette.ids import new_uuid
from oubliette.runtime.store.errors import StorageFault, UniqueClash
from oubliette.runtime.store.postgres.fence import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

_FAULTS: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.InsufficientResources,
    errors.ReadOnlySqlTransaction,
    errors.TransactionRollback,
    errors.IdleInTransactionSessionTimeout,
    # What the system refuses the server: a quota, a limit of a file, a volume that only reads.
    errors.InternalError_,
    errors.InsufficientPrivilege,
    errors.DataCorrupted,
    errors.IndexCorrupted,
)
"""The database cannot do anything now: connection lost, server stopping or starting, disk full,
too many connections, a standby, a deadlock with another transaction."""


@contextlib.contextmanager
def translated_errors() -> Generator[None]:
    """Give errors of the database the types that the store distinguishes.

    Raises:
        StorageFault: the database cannot be used now.
        UniqueClash: another row has the same unique value.
        InvalidParameter: a text has a character that cannot be stored.
        StaleNode, NotHere: the fence of a node refuses (see `fence`).
    """
    try:
        yield
    except errors.PipelineAborted:
        raise  # an earlier statement failed, whose error comes first
    except errors.UniqueViolation as error:
        raise UniqueClash(_said(error)) from error
    except _FAULTS as error:
        raise StorageFault(_said(error)) from error
    except psycopg.DataError as error:
        raise InvalidParameter(f"cannot be stored: {_said(error)}") from error
    except psycopg.DatabaseError as error:
        refused = refusal(error)
        if refused is None:
            raise
        raise refused from error


def _said(error: psycopg.Error) -> str:
    # libpq adds lines of advice.
    said = error.diag.message_primary or str(error).strip().partition("\n")[0]
    if isinstance(error, errors.DiskFull):
        # Its words may be "wrote only 4096 of 8192 bytes", which names no disk.
        return f"the disk of the database is full: {said}"
    return said or type(error).__name__


class PostgresConnection:
    """A `StoreConnection` to PostgreSQL.

    Args:
        connection: In autocommit mode: BEGIN and COMMIT are statements of the store.
        client_side: Whether parameters are put into the text of statements here. A value without a
            type (`?1 IS NULL`) then needs no cast; a pipeline cannot have it.
    """

    dialect = "postgresql"

    def __init__(
        self, connection: psycopg.Connection[tuple[Any, ...]], *, client_side: bool
    ) -> None:
        self.raw = connection
        self._cursors = psycopg.ClientCursor if client_side else psycopg.Cursor

    @property
    def usable(self) -> bool:
        """Whether the connection was not lost."""
        return not self.raw.closed and not self.raw.broken

    def execute(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /
    ) -> PostgresRows:
        """Execute one statement of the store; see `translated_errors`."""
        given: Any = parameters
        if numbered(sql):
            values = cast("Sequence[Any]", parameters)
            given = {f"p{number}": value for number, value in enumerate(values, 1)}
        cursor = self._cursors(self.raw)
        with translated_errors():
            # Without parameters psycopg leaves % as it is.
            cursor.execute(cast("Any", translated(sql)), given or {})
        return PostgresRows(cursor)

    def close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.raw.close()


class Fence(Protocol):
    """Right of this machine to write, which another may have taken."""

    def check(self, connection: PostgresConnection) -> Callable[[], None]:
        """Execute the check in a transaction; the result raises if the right is lost."""
        ...


class Connects(Protocol):
    """Maker of connections to one database; see `PostgresDatabase`."""

    @property
    def news(self) -> CommitNews:
        """From the writer of this process to the tails."""
        ...

    @property
    def fence(self) -> Fence | None:
        """Checked in each transaction that writes; None: this machine is the only one."""
        ...

    def connect(self) -> PostgresConnection: ...

    def connect_read_only(self) -> PostgresConnection: ...


class PostgresRows:
    """Result of a statement; in a pipeline it is awaited when it is used."""

    def __init__(self, cursor: psycopg.Cursor[tuple[Any, ...]]) -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        if self._cursor.rowcount < 0:
            with translated_errors(), self._cursor.connection.pipeline():
                pass  # the end of the inner pipeline fetches all results
        return self._cursor.rowcount

    def fetchone(self) -> Any:
        with translated_errors():
            return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        with translated_errors():
            return self._cursor.fetchall()

    def close(self) -> None:
        self._cursor.close()

    def __iter__(self) -> Iterator[Any]:
        with translated_errors():
            yield from self._cursor


_PARAMETER: Final = re.compile(r"\?(\d*)|(?<![:\w]):([a-z_]+)|%|'[^']*'")
_SPELLINGS: Final = (
    (re.compile(r" INDEXED BY \w+"), ""),
    (re.compile(r"\b(ORDER BY|WHERE) \+"), r"\1 "),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r" IS (\?\d*)"), r" IS NOT DISTINCT FROM \1"),
    (re.compile(r"\bBLOB\b"), "BYTEA"),
)


@cache
def translated(sql: str) -> str:
    """The statement, which is SQLite's, in PostgreSQL's spelling and with psycopg's placeholders.

    A statement that differs in more than what is listed here has a text of its own. Numbered
    parameters become names (`p1`), so that one value can be used twice; see `bound`.
    """
    for pattern, replacement in _SPELLINGS:
        sql = pattern.sub(replacement, sql)

    def placeholder(match: re.Match[str]) -> str:
        whole, number, name = match[0], match[1], match[2]
        if whole == "%":
            return "%%"
        if whole.startswith("'"):
            return whole.replace("%", "%%")
        if name:
            return f"%({name})s"
        return f"%(p{number})s" if number else "%s"

    return _PARAMETER.sub(placeholder, sql)


@cache
def numbered(sql: str) -> bool:
    """Whether the statement's parameters are numbered (`?1`)."""
    return re.search(r"\?\d", sql) is not None


class CommitNews:
    """Those who follow the log in this process, woken by its writer; thread-safe.

    The server notifies this process as well, which knows its own notification by `token`: the way
    over the server takes longer.
    """

    def __init__(self) -> None:
        self.token = new_uuid()
        """Payload of the notifications of this process."""
        self._lock = threading.Lock()
        self._followers: tuple[Callable[[], object], ...] = ()

    def follow(self, wake: Callable[[], object]) -> None:
        """Call `wake` after each commit of events, on the thread of the writer; must be quick."""
        with self._lock:
            self._followers += (wake,)

    def leave(self, wake: Callable[[], object]) -> None:
        """Undo `follow`; a call that has begun may still be under way."""
        with self._lock:
            self._followers = tuple(each for each in self._followers if each != wake)

    def committed(self) -> None:
        for wake in self._followers:
            wake()
